"""Recipes for building networks: the library, the name there and the arguments, recorded to rebuild the network.

    {"timm": "resnet18", "num_classes": 10}                      timm.create_model
    {"torchvision": "vit_b_16", "num_classes": 10}               torchvision.models.get_model
    {"transformers": "BertForSequenceClassification", "config": {…}}
    {"peft": {"default": {…}}, "on": {"transformers": …}}        adapters on one of the above
    {"byov": "convnet16", "classes": 10, "channels": 1}          byov.models.create

Recipes are untrusted. Only the libraries named here are imported, and no weights are downloaded.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import nn

Recipe = dict[str, Any]

EXTRAS = {"transformers": "hf", "peft": "hf"}
"""The extra of byov that installs a library."""
FETCHES = ("pretrained", "checkpoint", "weights", "cache")
"""Prefixes of arguments that would read files or access the network."""
ATTENTION = ("eager", "sdpa", "flash_attention_2", "flex_attention")
"""The implementations in Transformers; code of any other name would be downloaded from the Hub, and run."""
PRIVATE = (
    "attn_implementation",
    "auto_map",
    "auto_mapping",
    "base_model_name_or_path",
    "kernel_config",
    "megatron_config",
    "megatron_core",
    "quantization_config",
    "use_kernels",
    "use_pretrained_backbone",
)
"""Configuration keys that cause downloads or imports; keys that start with an underscore are also left out."""
ADAPTERS = ("LORA", "ADALORA", "LOHA", "LOKR", "IA3", "OFT", "HRA", "LN_TUNING")
"""PEFT adapters that consist only of numbers; others download a tokenizer, read files or compile code."""
STARTS = ("corda_config", "eva_config", "loftq_config", "lora_ga_config", "runtime_config")
"""Configuration of an adapter's initialisation, which the saved weights replace, or of its runtime."""


def build(recipe: Recipe) -> nn.Module:
    """Build the network of a recipe, with random weights."""
    library = library_of(recipe)
    try:
        import_module(library)
    except ImportError as error:
        how = f"pip install 'torch-byov[{EXTRAS[library]}]'" if library in EXTRAS else f"pip install {library}"
        raise ValueError(f"The network needs {library}, which is not installed: {how}, or pass net=.") from error
    try:
        return BUILDERS[library](recipe)
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError, OSError) as error:
        reason = first_line(error)
        raise ValueError(f"{library} cannot build {name_of(recipe)!r} from this recipe: {reason}.") from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if there is none, without a full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def library_of(recipe: Any) -> str:
    """Return the library that a recipe names; raise if it is not a valid recipe."""
    found = [library for library in BUILDERS if isinstance(recipe, dict) and library in recipe]
    if len(found) != 1:
        *others, last = map(repr, BUILDERS)
        raise ValueError(
            f"A recipe is a dictionary that names a network of one library, {', '.join(others)} or {last}, as in"
            " {'timm': 'resnet18', 'num_classes': 10}."
        )
    if fetches := [key for key in recipe if str(key).startswith(FETCHES)]:
        raise ValueError(f"A recipe downloads no weights, so it cannot have {fetches[0]!r}: the folder has them all.")
    return found[0]


def name_of(recipe: Recipe) -> str:
    """Return the network's name in its library."""
    return name_of(recipe["on"]) if "on" in recipe else str(recipe[library_of(recipe)])


def arguments(recipe: Recipe, library: str) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in recipe.items() if key != library}


def _timm(recipe: Recipe) -> nn.Module:
    import timm

    if not timm.is_model(name := recipe["timm"]):  # timm would also load models from the Hub, or from a folder
        raise ValueError("there is no such model")
    return timm.create_model(name, pretrained=False, **arguments(recipe, "timm"))


def _torchvision(recipe: Recipe) -> nn.Module:
    from torchvision import models

    name = recipe["torchvision"]
    # Segmentation and detection networks would download the weights of their backbone.
    parts = {"weights", "weights_backbone"} & inspect.signature(models.get_model_builder(name)).parameters.keys()
    return models.get_model(name, **dict.fromkeys(parts), **arguments(recipe, "torchvision"))


def _byov(recipe: Recipe) -> nn.Module:
    from byov.models.registry import create

    return create(recipe["byov"], **arguments(recipe, "byov"))


def _transformers(recipe: Recipe) -> nn.Module:
    import transformers

    cls = getattr(transformers, str(recipe["transformers"]), None)
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise ValueError("there is no such model")
    _check_backbones(recipe["config"])
    config = transformers.AutoConfig.for_model(**_public(recipe["config"]))
    attention = recipe.get("attention", "eager")
    if attention not in ATTENTION:
        raise ValueError(f"its attention is {', '.join(ATTENTION[:-1])} or {ATTENTION[-1]}, not {attention!r}")
    return cls._from_config(config, attn_implementation=attention)


def _peft(recipe: Recipe) -> nn.Module:
    import peft

    adapters = {}
    for name, config in recipe["peft"].items():
        if config["peft_type"] not in ADAPTERS:
            raise ValueError(f"an adapter is {', '.join(ADAPTERS[:-1])} or {ADAPTERS[-1]}, not {config['peft_type']!r}")
        config = {key: value for key, value in config.items() if key not in (*PRIVATE, *STARTS)}
        if more := [key for key, value in config.items() if key.endswith("_config") and value]:
            raise ValueError(f"an adapter has no {more[0]!r}")
        kind = peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING[config["peft_type"]]
        known = {key: value for key, value in _public(config).items() if key in kind.__dataclass_fields__}
        # Initial values are overwritten, and some initialisations read the network's weights.
        adapters[name] = kind(**known | ({"init_lora_weights": True} if "init_lora_weights" in known else {}))
    (first, config), *others = adapters.items()
    net: Any = peft.get_peft_model(build(recipe["on"]), config, first)
    for name, config in others:
        net.add_adapter(name, config)
    return net


BUILDERS: dict[str, Callable[[Recipe], nn.Module]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "transformers": _transformers,
    "peft": _peft,
    "byov": _byov,
}
"""The libraries that build networks by name."""


def _check_backbones(config: Any) -> None:
    """Raise if a backbone, at any level, is named like a repository or a folder: hf-hub:…, user/name."""
    items = config.items() if isinstance(config, Mapping) else enumerate(config) if isinstance(config, list) else ()
    for key, value in items:
        if (
            key in ("architecture", "backbone")
            and isinstance(value, str)
            and not value.replace(".", "_").isidentifier()
        ):
            raise ValueError(f"there is no backbone {value!r}")
        _check_backbones(value)


def _public(config: Any) -> Any:
    """Return a configuration without the keys, at any level, that cause downloads or imports."""
    if isinstance(config, list):
        return [_public(item) for item in config]
    if not isinstance(config, Mapping):
        return config
    return {k: _public(v) for k, v in config.items() if not str(k).startswith("_") and k not in PRIVATE}


# Find the recipe of a network


def find(net: nn.Module, shapes: Mapping[str, Any]) -> Recipe | None:
    """Return the recipe that builds this network, whose state has these shapes; None if none is found."""
    return next((recipe for recipe in candidates(net) if makes(recipe, net, shapes)), None)


def build_like(recipe: Recipe, net: nn.Module, shapes: Mapping[str, Any]) -> None:
    """Raise if a recipe does not build this network."""
    build(recipe)  # raises the exact error if the recipe builds nothing
    if not makes(recipe, net, shapes):
        raise ValueError(f"The recipe builds a different network than this {type(net).__name__}: give all arguments.")


def makes(recipe: Recipe, net: nn.Module, shapes: Mapping[str, Any]) -> bool:
    """Return whether a recipe builds this network: the same modules and settings, and a state of these shapes."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):  # no memory, and no random numbers
            made = build(recipe)
    except (ValueError, NotImplementedError):
        return False
    return {k: v.shape for k, v in made.state_dict().items()} == shapes and _modules(made) == _modules(net)


def _modules(net: nn.Module) -> dict[str, Any]:
    """Return the type and settings of each module; for Transformers and PEFT the settings are in the configuration."""
    return {
        name: (
            type(module),
            {} if type(module).__module__.startswith(("transformers.", "peft.")) else _settings(module),
        )
        for name, module in net.named_modules(remove_duplicate=False)
    }


def _settings(module: nn.Module) -> dict[str, Any]:
    plain = (bool, int, float, str)
    return {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and key != "training" and all(isinstance(v, plain) for v in _items(value))
    }


def _items(value: Any) -> list[Any] | tuple[Any, ...]:
    return value if isinstance(value, list | tuple) else [value]


def candidates(net: nn.Module) -> Iterator[Recipe]:
    """Yield recipes that may build the network, from what its library stores in it."""
    module = type(net).__module__
    if module.startswith("peft.") and hasattr(net, "peft_config"):
        adapters = {name: _public(plain(config.to_dict())) for name, config in net.peft_config.items()}  # type: ignore[operator,union-attr]
        yield from ({"peft": adapters, "on": base} for base in candidates(net.get_base_model()))  # type: ignore[operator]
    elif module.startswith("transformers.") and hasattr(net, "config"):
        config: Any = net.config
        attention = getattr(config, "_attn_implementation", None) or "eager"
        yield {"transformers": type(net).__name__, "config": _public(plain(config.to_dict())), "attention": attention}
    elif module.startswith("timm.") and hasattr(net, "pretrained_cfg"):
        yield from _of_timm(net)
    elif module.startswith("torchvision.models."):
        yield from _of_torchvision(net)


def plain(config: Any) -> Any:
    """Convert a library's configuration to JSON values: sets become lists, enumerations their values."""
    return json.loads(
        json.dumps(config, default=lambda v: sorted(v) if isinstance(v, set) else getattr(v, "value", str(v)))
    )


def _of_timm(net: Any) -> Iterator[Recipe]:
    name = net.pretrained_cfg.get("architecture")
    size = getattr(getattr(net, "patch_embed", None), "img_size", None)
    drop = max((m.drop_prob for m in net.modules() if type(m).__name__ == "DropPath"), default=0.0)
    stem = next((m.in_channels for m in net.modules() if isinstance(m, nn.Conv2d)), 3)
    recipe: Recipe = {"timm": name, "num_classes": getattr(net, "num_classes", None)}
    recipe |= {} if stem == 3 else {"in_chans": stem}
    recipe |= {"drop_rate": net.drop_rate} if getattr(net, "drop_rate", 0.0) else {}
    recipe |= {"drop_path_rate": drop} if drop else {}
    yield recipe
    if size:
        yield recipe | {"img_size": list(size)}


def _of_torchvision(net: Any) -> Iterator[Recipe]:
    from torchvision import models

    last = [m.out_features for m in net.modules() if isinstance(m, nn.Linear)]
    given: Recipe = {"num_classes": last[-1]} if last else {}
    given |= {"image_size": net.image_size} if isinstance(getattr(net, "image_size", None), int) else {}
    for name in models.list_models(models):
        if models.get_model_builder(name).__module__ == type(net).__module__:
            yield {"torchvision": name, **given}
