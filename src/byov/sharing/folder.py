"""A posterior in a folder: its tensors, their description, and a model card. No pickle, and no code.

model.safetensors   the tensors under the network's own keys, with checksums: see `tensors`
byov.json           the families and what they cover, the prior, how to build the network: see `origin`
README.md           the model card
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from byov.files import mismatch, read_json, replacing, write_json
from byov.posterior.bayesianize import bayesianize
from byov.posterior.family import Family
from byov.posterior.layout import occurrences
from byov.posterior.module import BayesianModule
from byov.posterior.prior import EMA, Normal, Prior, TeacherMean, TeacherNormal
from byov.posthoc.evidence import Evidence
from byov.sharing import hub, origin
from byov.sharing.card import Measured, card, measured_rows
from byov.sharing.tensors import PRIOR, load_tensors, tensors_of
from byov.train import checkpoint
from byov.version import __version__

WEIGHTS, ABOUT, CARD = "model.safetensors", "byov.json", "README.md"
PATTERN = {
    "format": int,
    "network": {"class": str, "recipe?": dict},
    "posterior": [{"family": str, "arguments": dict, "covers": [str]}],
    "prior": str,
    "shared_draw": bool,
    "frozen": [str],
    "evidence?": {
        "log_marginal_likelihood": float,
        "log_likelihood": float,
        "prior_precision": float,
        "noise?": float,
        "structure": str,
        "examples": int,
    },
}
FORMAT = 1


def save(
    model: BayesianModule,
    folder: str | os.PathLike[str],
    *,
    recipe: origin.Recipe | None = None,
    measured: Measured | None = None,
    force: bool = False,
) -> None:
    """Save a posterior to a folder; `byov.load` restores it from there, with the same draws for the same seed.

    Args:
        model: a BayesianModule.
        folder: the folder, created if needed; other files in it are kept.
        recipe: how to build the network, as in {"timm": "resnet18", "num_classes": 10}; the libraries are those of
            `byov.sharing.origin`. By default the recipe is read from what timm, torchvision, Transformers or PEFT store
            in the network, if it rebuilds the network; otherwise the network has to be passed to `load`.
        measured: numbers for the card, by name, or rows of them by name; or a prediction and its labels, from which
            accuracy, calibration error, NLL and Brier score are computed.
        force: replace an existing posterior.
    """
    if not isinstance(model, BayesianModule):
        raise TypeError(
            f"save takes a BayesianModule, not {type(model).__name__}: save a plain network with its own library."
        )
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: a posterior is saved to a folder.")
    if there := [name for name in (ABOUT, WEIGHTS, CARD) if (folder / name).exists() and not force]:
        raise FileExistsError(f"{folder / there[0]} exists: choose another folder, or pass force=True.")
    rows = measured_rows(measured)
    tensors = tensors_of(model)
    about = _about(model, tensors, recipe)
    text = card(about, rows, sum(factor.layout.numel for factor in model.factors))
    # The file that is read first is written last, so that the others exist when it does.
    (folder / ABOUT).unlink(missing_ok=True)
    checkpoint.save(folder / WEIGHTS, tensors)
    with replacing(folder / CARD) as fresh:
        fresh.write_text(text, encoding="utf-8")
    write_json(folder / ABOUT, {**about, "measured": rows})


def _about(model: BayesianModule, tensors: Mapping[str, Tensor], recipe: origin.Recipe | None) -> dict[str, Any]:
    """Describe the posterior that the tensors belong to."""
    if type(model.prior) not in (Normal, TeacherMean, TeacherNormal):
        raise ValueError(f"A posterior can only be saved with byov's own priors, not {type(model.prior).__name__}.")
    ema, sources = getattr(model.prior, "ema", None), len(model.factors) + len(list(occurrences(model.net)))
    if ema is not None and ema.count != sources:
        raise ValueError("The prior's teacher follows a different model: create the prior with byov.EMA(model).")
    if unknown := [f.family for f in model.factors if not is_dataclass(f.family)]:
        raise ValueError(f"A family must be a dataclass, so that its arguments can be saved, unlike {unknown[0]!r}.")
    shapes = {key: tensors[key].shape for key in model.point_state_dict()}
    if recipe is None:
        recipe = origin.find(model.net, shapes)
    else:
        origin.build_like(recipe, model.net, shapes)
    own, evidence = model.net.named_parameters(), vars(model).get("evidence")
    return {
        "format": FORMAT,
        "byov": __version__,
        "torch": str(torch.__version__),
        "network": {"class": type(model.net).__name__, "recipe": recipe},
        "posterior": [
            {
                "family": type(factor.family).__name__,
                "arguments": asdict(factor.family),  # type: ignore[call-overload]
                "covers": [slot.name for slot in factor.layout.slots],
            }
            for factor in model.factors
        ],
        "prior": type(model.prior).__name__,
        "shared_draw": model.shared_draw,
        "frozen": [name for name, parameter in own if not parameter.requires_grad],
        **({"evidence": asdict(evidence)} if isinstance(evidence, Evidence) else {}),
    }


def load(
    folder: str | os.PathLike[str],
    net: nn.Module | None = None,
    *,
    families: Iterable[type] = (),
    device: torch.device | str = "cpu",
    **hub_options: Any,
) -> BayesianModule:
    """Load a posterior saved by `save_pretrained`, in eval mode; nothing named in the folder is imported.

    Args:
        folder: a folder, or the name of a repository on the Hugging Face Hub, "user/name". For the latter, `revision`,
            `token` and other arguments of `huggingface_hub.snapshot_download` are accepted.
        net: the network, with any weights, if the folder does not record how to build it. It is not changed.
        families: classes of your own families.
        device: the device of the model.
    """
    folder = hub.find_or_download(str(folder), (ABOUT, WEIGHTS, CARD), hub_options)
    if missing := [name for name in (ABOUT, WEIGHTS) if not (folder / name).is_file()]:
        raise FileNotFoundError(f"{folder} is not a saved posterior: it has no {' and no '.join(missing)}.")
    about = read_json(folder / ABOUT)
    if wrong := mismatch(about, PATTERN):
        raise ValueError(f"{folder / ABOUT} is not what byov writes: {wrong}.")
    if about["format"] > FORMAT:
        raise ValueError(f"{folder} was saved by byov {about.get('byov')}, which is newer than this one: update it.")
    chosen = [_family(part, folder, families) for part in about["posterior"]]
    tensors = checkpoint.load(folder / WEIGHTS)
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise ValueError(f"{folder / WEIGHTS} does not hold the tensors of a posterior.")
    with torch.random.fork_rng(devices=[]):  # initial values are overwritten
        net = _network(about, folder) if net is None else net
        try:
            model = _posterior(net, about, chosen, tensors)
        except (ValueError, KeyError, RuntimeError) as error:
            kind, reason = about["network"]["class"], origin.first_line(error)
            raise ValueError(f"{folder} holds a posterior over another {kind} than this network: {reason}.") from error
    if (fitted := about.get("evidence")) is not None:
        vars(model)["evidence"] = Evidence(**{field.name: fitted.get(field.name) for field in fields(Evidence)})
    return model.to(device).eval()


def _network(about: dict[str, Any], folder: Path) -> nn.Module:
    recipe = about["network"].get("recipe")
    if recipe is None:
        kind = about["network"]["class"]
        raise ValueError(f"{folder} does not record how to build its network, a {kind}: pass it as net=.")
    return origin.build(recipe)


def _family(part: dict[str, Any], folder: Path, families: Iterable[type]) -> Family:
    """Create a family from its name and arguments: one of byov's, or one of those given."""
    known = dict(vars(import_module("byov.posterior")))
    known |= {cls.__name__: cls for cls in families}
    known = {name: cls for name, cls in known.items() if is_dataclass(cls) and hasattr(cls, "draw")}
    cls: Any = known.get(part["family"])
    if cls is None:
        raise ValueError(
            f"{folder} has a posterior of the family {part['family']!r}, which is not one of"
            f" {', '.join(sorted(known))}: pass its class in families=."
        )
    names = {field.name for field in fields(cls)}
    if odd := set(part["arguments"]) - names:
        raise ValueError(f"{folder / ABOUT}: the family {part['family']} has no argument {min(odd)!r}.")
    arguments = {key: tuple(v) if isinstance(v, list) else v for key, v in part["arguments"].items()}
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / ABOUT}: {error}") from error


def _posterior(
    net: nn.Module, about: dict[str, Any], families: list[Family], tensors: Mapping[str, Tensor]
) -> BayesianModule:
    """Return the network with the posterior described by the folder."""
    if not isinstance(net, nn.Module) or isinstance(net, BayesianModule):
        raise ValueError(f"net= takes a plain torch.nn.Module, not {type(net).__name__}")
    rules = {_covering(part["covers"]): family for part, family in zip(about["posterior"], families, strict=True)}
    own = {name: p.shape for p, places in occurrences(net) for name, _ in places}
    for name in (name for part in about["posterior"] for name in part["covers"]):
        if name not in own or (name in tensors and tensors[name].shape != own[name]):
            shape = tuple(own[name]) if name in own else "missing"
            raise ValueError(
                f"{name} is {shape} in it, but {tuple(tensors[name].shape) if name in tensors else None} in the folder"
            )
    prior = _prior(about["prior"], tensors)
    model = bayesianize(net, rules, prior=prior, shared_draw=about["shared_draw"])
    if getattr(prior, "ema", None) is not None and f"{PRIOR}ema.variance_0" not in tensors:
        prior.ema = EMA(model, variance=False)
    load_tensors(model, tensors)
    frozen = set(about["frozen"])
    for name, parameter in model.net.named_parameters():
        parameter.requires_grad_(name not in frozen)
    return model


def _covering(names: list[str]) -> Callable[[str, nn.Module, Tensor], bool]:
    covered = frozenset(names)
    return lambda name, module, parameter: name in covered


def _prior(kind: str, tensors: Mapping[str, Tensor]) -> Prior:
    found = {key.removeprefix(PRIOR): value for key, value in tensors.items() if key.startswith(PRIOR)}
    if kind == "Normal":
        moments: dict[str, Any] = {role: found.get(role) for role in ("mean", "std")}
        for role in (role for role, value in moments.items() if value is None):
            named = {k.removeprefix(f"{role}/"): v for k, v in found.items() if k.startswith(f"{role}/")}
            moments[role] = {key.replace("/", "."): value for key, value in named.items()}
        return Normal(**moments)
    if kind == "TeacherMean":
        return TeacherMean(std=found["std"].item())
    if kind == "TeacherNormal":
        return TeacherNormal(floor=found["floor"].item())
    raise ValueError(f"there is no prior {kind!r}")
