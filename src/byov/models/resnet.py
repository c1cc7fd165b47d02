"""ResNets on torchvision's blocks, with the stem that small images need."""

from typing import Literal

import torchvision
from torch import nn

DEPTHS = {18: torchvision.models.resnet18, 34: torchvision.models.resnet34, 50: torchvision.models.resnet50}


def resnet(
    depth: int = 18, classes: int = 1000, channels: int = 3, stem: Literal["cifar", "imagenet"] = "imagenet"
) -> nn.Module:
    """torchvision's ResNet of that depth; the CIFAR stem is a 3×3 convolution of stride 1 and no max-pooling.

    `classes=0` leaves the last layer out: the module then gives its 512 (or 2,048) pooled features.
    """
    if depth not in DEPTHS:
        raise ValueError(f"A ResNet here has one of the depths {sorted(DEPTHS)}, not {depth}.")
    if stem not in ("cifar", "imagenet"):
        raise ValueError(f"A ResNet's stem is 'cifar' or 'imagenet', not {stem!r}.")
    net = DEPTHS[depth](weights=None, num_classes=classes or 1)
    if stem == "cifar":
        net.conv1 = nn.Conv2d(channels, 64, kernel_size=3, stride=1, padding=1, bias=False)
        net.maxpool = nn.Identity()
    elif channels != 3:
        net.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    if not classes:
        net.fc = nn.Identity()
    return net


def cifar_resnet18(classes: int = 10, channels: int = 3) -> nn.Module:
    """ResNet-18 with the CIFAR stem: 11,173,962 parameters for ten classes."""
    return resnet(18, classes, channels, stem="cifar")
