"""Networks by name (byov's own, then timm's, then torchvision's) or by a user's entry point."""

import difflib
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from byov.data.printable import reason
from byov.models.pyramidnet import pyramidnet
from byov.models.resnet import DEPTHS, convnet, resnet
from byov.models.vit import SIZES, start_as_byov, vit

Builder = Callable[[int, int, int | None], nn.Module]  # classes, channels, image size
PYRAMID = re.compile(r"pyramidnet(\d+)_a(\d+)(_bottleneck)?")  # any depth and α, with bottlenecks or without


def _any_size(build: Callable[..., nn.Module], *shape: Any, **options: Any) -> Builder:
    """Adapt the builder of a network that takes images of any size."""
    return lambda classes, channels, image_size: build(*shape, classes=classes, channels=channels, **options)


def _pyramidnet(name: str) -> Builder | None:
    found = PYRAMID.fullmatch(name)
    return _any_size(pyramidnet, int(found[1]), int(found[2]), bool(found[3])) if found else None


def _vit(size: str, patch: int) -> Builder:
    usual = 224 if patch > 8 else 32
    return lambda classes, channels, image_size: vit(size, classes, channels, image_size or usual, patch)


OWN: dict[str, Builder] = {
    **{f"convnet{width}": _any_size(convnet, width) for width in (16, 32, 64)},
    **{f"resnet{depth}": _any_size(resnet, depth) for depth in DEPTHS},
    **{f"cifar_resnet{depth}": _any_size(resnet, depth, stem="cifar") for depth in DEPTHS},
    **{f"pyramidnet110_a{alpha}": _any_size(pyramidnet, 110, alpha) for alpha in (48, 84, 270)},
    **{f"vit-{size}/{patch}": _vit(size, patch) for size in SIZES for patch in (2, 4, 8, 16)},
}
"""Builders by name; `classes=0` builds the network without its last layer. To add a network, add an entry."""


def names() -> list[str]:
    """Return all names that `create` accepts, without the optional prefixes."""
    return sorted({*OWN, *timm.list_models(), *torchvision.models.list_models(torchvision.models)})


def create(
    name: str, classes: int, channels: int = 3, image_size: int | None = None, pretrained: bool = False
) -> nn.Module:
    """Build the network called `name` with `classes` outputs (0 for none: features).

    `timm:NAME` and `torchvision:NAME` select a library; a bare name is looked up here, then in timm, then in
    torchvision. `pyramidnetD_aA`, optionally with the suffix `_bottleneck`, is a PyramidNet of depth D that widens by
    A. `image_size` matters for networks with a position embedding. `pretrained` loads the weights of timm or
    torchvision.
    """
    if classes < 0 or channels < 1 or (image_size is not None and image_size < 1):
        raise ValueError(f"classes={classes}, channels={channels}, image_size={image_size} are not valid sizes.")
    library, _, bare = name.rpartition(":")
    if library not in ("", "timm", "torchvision"):
        raise ValueError(f"The prefix of a network's name is 'timm:' or 'torchvision:', unlike that of {name!r}.")
    own = OWN.get(bare) or _pyramidnet(bare)
    if not library and own is not None:
        if pretrained:
            raise ValueError(f"{name!r} has no pretrained weights here; try 'timm:{bare}' or 'torchvision:{bare}'.")
        return own(classes, channels, image_size)
    if library in ("", "timm") and timm.is_model(bare):
        return _timm(bare, classes, channels, image_size, pretrained)
    if library in ("", "torchvision") and bare in torchvision.models.list_models(torchvision.models):
        return _torchvision(bare, classes, channels, image_size, pretrained)
    if bare.startswith("pyramidnet"):
        raise ValueError(f"A PyramidNet's name is pyramidnetDEPTH_aALPHA, such as pyramidnet110_a270, not {name!r}.")
    close = difflib.get_close_matches(bare, names(), n=5, cutoff=0.4) or ["convnet32", "resnet18", "vit-nano/4"]
    raise ValueError(f"There is no network called {name!r}; try {', '.join(close)}.")


LARGEST = 224
"""The default upper limit of the image size."""


def fitting_size(name: str, side: int) -> int:
    """Return the input size for a network and images whose shorter side is `side` pixels.

    This is the images' own size, rounded to a multiple of 8 pixels or of a patch, and at most 224. Our transformers use
    at most 16 patches per side, for patches of up to 8 pixels. Networks with a fixed size keep it (transformers of timm
    and torchvision). A user's own network, whose size is unknown, gets 224.
    """
    library, _, bare = name.rpartition(":")
    if name.startswith("python:"):
        return LARGEST
    patch = re.fullmatch(r"vit-\w+/(\d+)", bare)
    if not library and patch:
        step = max(8, int(patch[1]))
        return _nearest(side, step, min(LARGEST, 16 * int(patch[1])))
    if library in ("", "timm") and bare not in OWN and timm.is_model(bare):
        fixed = timm.get_pretrained_cfg(bare, allow_unregistered=True)
        if fixed and fixed.fixed_input_size:
            return int(fixed.input_size[-1])
    elif library in ("", "torchvision") and bare.startswith(("vit_", "maxvit")):
        return LARGEST
    return _nearest(side, 8, LARGEST)


def _nearest(side: int, step: int, most: int) -> int:
    """Round to a multiple of `step`, at least one and at most `most`."""
    return min(most, max(step, step * round(side / step)))


def encoder(
    name: str, channels: int = 3, image_size: int | None = None, pretrained: bool = False
) -> tuple[nn.Module, int]:
    """Build a network without its last layer; return it with the width of its features (batch, width).

    `name` is one that `create` accepts, or `python:module:function`, a user's own function that returns the module. A
    timm transformer (`timm:vit_*`) is initialised as in BYOV, unless its weights are pretrained.
    """
    if name.startswith("python:"):
        return _own_encoder(name, channels, image_size or 224)
    with torch.device("meta"):  # only to read the width: no memory, no random numbers
        net = create(name, 1, channels, image_size)
    width = net.get_submodule(_last_linear(net, name)).in_features
    net = create(name, 0, channels, image_size, pretrained)
    if isinstance(net, VisionTransformer) and not pretrained and name not in OWN:  # ours have already done so
        start_as_byov(net)
    if image_size is not None:
        try_image(net, name, channels, image_size)
    return net, int(width)  # type: ignore[arg-type]


def try_image(net: nn.Module, name: str, channels: int, image_size: int) -> Tensor:
    """Return the output of a network for one black image, without changing its modes and statistics.

    Raise if the network cannot take images of this size.
    """
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        with torch.no_grad():
            return net(torch.zeros(1, channels, image_size, image_size))
    except (RuntimeError, AssertionError, IndexError) as error:
        shape = f"{channels}×{image_size}×{image_size}"
        raise ValueError(f"{name} does not take images of {shape}: {reason(error).rstrip('.')}.") from error
    finally:
        for module, mode in modes.items():
            module.training = mode


def resolve(name: str) -> Any:
    """Import the object named by `module:attribute`; modules in the working directory are found too."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise ValueError(f"An entry point has the form 'module:attribute', not {name!r}.")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = import_module(module)
    except ImportError as error:
        raise ValueError(f"The module {module!r} of the entry point cannot be imported: {error}.") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"The module {module!r} has no {attribute!r}.")
        found = getattr(found, part)
    return found


def call_entry(name: str, *arguments: int) -> nn.Module:
    """Call a user's `python:module:function` with these arguments; raise if it does not return a network."""
    make = resolve(name.removeprefix("python:"))
    if not callable(make):
        raise ValueError(f"{name} is not a function that returns a network, but of type {type(make).__name__}.")
    net = make(*arguments)
    if not isinstance(net, nn.Module):
        raise ValueError(f"{name} returns {type(net).__name__}, not a torch.nn.Module.")
    return net


def _own_encoder(name: str, channels: int, image_size: int) -> tuple[nn.Module, int]:
    """Call a user's function; measure the width of the features on one image, without changing the network."""
    net = call_entry(name)
    out = try_image(net, name, channels, image_size)
    if not isinstance(out, Tensor) or out.ndim != 2:
        raise ValueError(f"An encoder returns features (N, width); {name} does not.")
    return net, out.shape[1]


def _timm(name: str, classes: int, channels: int, image_size: int | None, pretrained: bool) -> nn.Module:
    size: dict[str, Any] = {}
    try:
        fixed = timm.get_pretrained_cfg(name, allow_unregistered=True)
        if image_size and fixed and fixed.fixed_input_size:
            size = {"img_size": image_size}
        return timm.create_model(name, pretrained=pretrained, num_classes=classes, in_chans=channels, **size)
    except RuntimeError as error:  # an unknown tag, as in resnet18.nothing
        raise ValueError(f"timm has no network {name!r}: {str(error).splitlines()[0]}") from error


def _torchvision(name: str, classes: int, channels: int, image_size: int | None, pretrained: bool) -> nn.Module:
    size = {"image_size": image_size} if image_size and name.startswith("vit_") else {}
    net = torchvision.models.get_model(name, weights="DEFAULT" if pretrained else None, **size)
    head = _last_linear(net, name)
    old = net.get_submodule(head)
    net.set_submodule(head, nn.Linear(old.in_features, classes) if classes else nn.Identity())
    if channels != 3:
        stem, conv = next((n, m) for n, m in net.named_modules() if isinstance(m, nn.Conv2d))
        same: dict[str, Any] = {key: getattr(conv, key) for key in ("kernel_size", "stride", "padding")}
        fresh = nn.Conv2d(channels, conv.out_channels, **same, bias=conv.bias is not None)
        nn.init.kaiming_normal_(fresh.weight, mode="fan_out", nonlinearity="relu")
        net.set_submodule(stem, fresh)
    return net


def _last_linear(net: nn.Module, name: str) -> str:
    linear = [key for key, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(f"{name!r} does not end in a linear layer, so its number of classes cannot be changed.")
    return linear[-1]
