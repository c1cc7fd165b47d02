"""ResNets with a stem for small images, and a small convolutional network."""

from typing import Literal

import torchvision
from torch import nn

DEPTHS = {18: torchvision.models.resnet18, 34: torchvision.models.resnet34, 50: torchvision.models.resnet50}


def convnet(width: int = 32, classes: int = 10, channels: int = 3) -> nn.Sequential:
    """Build the demo's encoder, small enough to train on two cores in a minute.

    It has three 3×3 convolutions with BatchNorm and ReLU, of 1, 2 and 4 times `width` channels, then the mean over
    pixels. `classes=0` omits the last layer: the module then returns its 4·width features.
    """
    if width < 1:
        raise ValueError(f"A convolutional network has at least one channel, not {width}.")
    layers: list[nn.Module] = []
    for i, inputs in enumerate((channels, width, 2 * width)):
        outputs = width << i
        conv = nn.Conv2d(inputs, outputs, 3, stride=1 if i == 0 else 2, padding=1, bias=False)
        layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    head = nn.Linear(4 * width, classes) if classes else nn.Identity()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def resnet(
    depth: int = 18, classes: int = 1000, channels: int = 3, stem: Literal["cifar", "imagenet"] = "imagenet"
) -> nn.Module:
    """Build torchvision's ResNet; the CIFAR stem is a 3×3 convolution of stride 1 without max-pooling.

    `classes=0` omits the last layer: the module then returns its 512 (or 2,048) pooled features.
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
    """Build ResNet-18 with the CIFAR stem: 11,173,962 parameters for ten classes."""
    return resnet(18, classes, channels, stem="cifar")
