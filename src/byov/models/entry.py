"""A user's own network by an entry point, `python:module:function`, beside every network by name."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from byov.models import registry


def resolve(name: str) -> Any:
    """What `module:attribute` names; modules beside the working directory are found too."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise ValueError(f"An entry point reads 'module:attribute', not {name!r}.")
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


def encoder(name: str, channels: int, image_size: int, pretrained: bool = False) -> tuple[nn.Module, int]:
    """An encoder and the width of its features: by name, or `python:module:function` that returns the module."""
    if not name.startswith("python:"):
        return registry.encoder(name, channels, image_size, pretrained)
    make = resolve(name.removeprefix("python:"))
    if not callable(make):
        raise ValueError(f"{name} is not a function that returns an encoder, but of type {type(make).__name__}.")
    net = make()
    if not isinstance(net, nn.Module):
        raise ValueError(f"{name} gives {type(net).__name__}, not a torch.nn.Module.")
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        with torch.no_grad():
            out = net(torch.zeros(1, channels, image_size, image_size))
    except RuntimeError as error:
        shape = f"{channels}×{image_size}×{image_size}"
        raise ValueError(f"{name} does not take images of {shape}: {str(error).splitlines()[0]}.") from error
    for module, mode in modes.items():
        module.training = mode
    if not isinstance(out, torch.Tensor) or out.ndim != 2:
        raise ValueError(f"An encoder gives features (N, width); {name} does not.")
    return net, out.shape[1]
