"""The networks that are timed: byov's ViTs (timm's, the patch embedding a matrix product) and torchvision's ResNets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torchvision
from torch import nn

from byov.models import vit


@dataclass(frozen=True)
class Network:
    """How to make it, the images it takes, and the batch it is timed with."""

    build: Callable[[], nn.Module]
    pixels: int
    classes: int
    batch: int
    cpu_batch: int = 64


def cifar_resnet18() -> nn.Module:
    """With the stem for small images: a 3×3 convolution of stride 1, no max-pooling."""
    net = torchvision.models.resnet18(num_classes=10)
    net.conv1 = nn.Conv2d(3, 64, kernel_size=3, padding=1, bias=False)
    net.maxpool = nn.Identity()
    return net


NETWORKS = {
    "vit_ti4": Network(partial(vit, "ti"), 32, 10, batch=512),
    "vit_s16": Network(partial(vit, "s", 1000, image_size=224, patch=16), 224, 1000, batch=256),
    "resnet18": Network(cifar_resnet18, 32, 10, batch=512),
    "resnet18_224": Network(torchvision.models.resnet18, 224, 1000, batch=256, cpu_batch=32),
}

TINY = {
    "vit_ti4": Network(partial(vit, "nano", image_size=16), 16, 10, batch=4),
    "vit_s16": Network(partial(vit, "nano", image_size=32, patch=16), 32, 10, batch=4),
    "resnet18": Network(cifar_resnet18, 8, 10, batch=2),
    "resnet18_224": Network(partial(torchvision.models.resnet18, num_classes=10), 32, 10, batch=2),
}
"""Sizes that only prove that a row runs."""
