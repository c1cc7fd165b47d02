"""Networks by name: this library's own, then timm's, then torchvision's."""

import difflib
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import timm
import torch
import torchvision
from torch import nn

from byov.models.convnet import convnet
from byov.models.pyramidnet import pyramidnet
from byov.models.resnet import DEPTHS, resnet
from byov.models.vit import SIZES, vit

Builder = Callable[[int, int, int | None], nn.Module]  # classes, channels, image size


def _resnet(classes: int, channels: int, image_size: int | None, depth: int, stem: str) -> nn.Module:
    return resnet(depth, classes, channels, stem)  # type: ignore[arg-type]


def _vit(classes: int, channels: int, image_size: int | None, size: str, patch: int) -> nn.Module:
    return vit(size, classes, channels, image_size or (224 if patch > 8 else 32), patch)


PYRAMID = re.compile(r"pyramidnet(\d+)_a(\d+)(_bottleneck)?")
"""A PyramidNet of any depth and α, with bottlenecks or without."""


def _pyramidnet(classes: int, channels: int, image_size: int | None, name: str) -> nn.Module:
    depth, alpha, bottleneck = PYRAMID.fullmatch(name).groups()  # type: ignore[union-attr]
    net = pyramidnet(int(depth), int(alpha), bool(bottleneck), classes=classes or 1, channels=channels)
    if not classes:
        net.fc = nn.Identity()  # type: ignore[assignment]
    return net


def _convnet(classes: int, channels: int, image_size: int | None, width: int) -> nn.Module:
    return convnet(width, classes, channels)


OWN: dict[str, Builder] = {
    **{f"convnet{width}": partial(_convnet, width=width) for width in (16, 32, 64)},
    **{f"resnet{depth}": partial(_resnet, depth=depth, stem="imagenet") for depth in DEPTHS},
    **{f"cifar_resnet{depth}": partial(_resnet, depth=depth, stem="cifar") for depth in DEPTHS},
    **{name: partial(_pyramidnet, name=name) for name in [f"pyramidnet110_a{alpha}" for alpha in (48, 84, 270)]},
    **{f"vit-{size}/{patch}": partial(_vit, size=size, patch=patch) for size in SIZES for patch in (2, 4, 8, 16)},
}
"""Builders by name; `classes=0` gives the network without its last layer. Add a network by adding an entry."""


def names() -> list[str]:
    """Every name that `create` knows, without the optional prefixes."""
    return sorted({*OWN, *timm.list_models(), *torchvision.models.list_models(torchvision.models)})


def create(
    name: str, classes: int, channels: int = 3, image_size: int | None = None, pretrained: bool = False
) -> nn.Module:
    """The network called `name`, with `classes` outputs (0 for none: features).

    `timm:NAME` and `torchvision:NAME` pick a library; a bare name is looked up here, then in timm, then in torchvision.
    `pyramidnetD_aA`, and that with `_bottleneck`, is a PyramidNet of depth D that widens by A.
    `image_size` matters to networks with a position embedding. `pretrained` loads the weights of timm or torchvision.
    """
    if classes < 0 or channels < 1 or (image_size is not None and image_size < 1):
        raise ValueError(f"classes={classes}, channels={channels}, image_size={image_size} is not a network's shape.")
    library, _, bare = name.rpartition(":")
    if library not in ("", "timm", "torchvision"):
        raise ValueError(f"The prefix of a network's name is 'timm:' or 'torchvision:', not {library + ':'!r}.")
    own = OWN.get(bare) or (partial(_pyramidnet, name=bare) if PYRAMID.fullmatch(bare) else None)
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
    close = difflib.get_close_matches(bare, names(), n=5, cutoff=0.4)
    raise ValueError(f"There is no network called {name!r}; the nearest names are {', '.join(close) or 'none'}.")


def encoder(
    name: str, channels: int = 3, image_size: int | None = None, pretrained: bool = False
) -> tuple[nn.Module, int]:
    """The network without its last layer, and the width of the features (batch, width) that it gives."""
    with torch.device("meta"):  # only to read the width: no memory, no random numbers
        net = create(name, 1, channels, image_size)
    width = net.get_submodule(_last_linear(net, name)).in_features
    return create(name, 0, channels, image_size, pretrained), int(width)  # type: ignore[arg-type]


def _timm(name: str, classes: int, channels: int, image_size: int | None, pretrained: bool) -> nn.Module:
    fixed = timm.get_pretrained_cfg(name, allow_unregistered=True)
    size: dict[str, Any] = {"img_size": image_size} if image_size and fixed and fixed.fixed_input_size else {}
    return timm.create_model(name, pretrained=pretrained, num_classes=classes, in_chans=channels, **size)


def _torchvision(name: str, classes: int, channels: int, image_size: int | None, pretrained: bool) -> nn.Module:
    size = {"image_size": image_size} if image_size and name.startswith("vit_") else {}
    net = torchvision.models.get_model(name, weights="DEFAULT" if pretrained else None, **size)
    head = _last_linear(net, name)
    old = net.get_submodule(head)
    _replace(net, head, nn.Linear(old.in_features, classes) if classes else nn.Identity())
    if channels != 3:
        stem, conv = next((n, m) for n, m in net.named_modules() if isinstance(m, nn.Conv2d))
        fresh = nn.Conv2d(
            channels,
            conv.out_channels,
            conv.kernel_size,  # type: ignore[arg-type]
            conv.stride,  # type: ignore[arg-type]
            conv.padding,  # type: ignore[arg-type]
            bias=conv.bias is not None,
        )
        nn.init.kaiming_normal_(fresh.weight, mode="fan_out", nonlinearity="relu")
        _replace(net, stem, fresh)
    return net


def _last_linear(net: nn.Module, name: str) -> str:
    linear = [key for key, module in net.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(f"{name!r} does not end in a linear layer, so it cannot be given other classes.")
    return linear[-1]


def _replace(net: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, child = path.rpartition(".")
    setattr(net.get_submodule(parent), child, module)
