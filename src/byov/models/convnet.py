"""Convolutional networks: a small one, ResNets with the stem that small images need, and PyramidNet."""

import math
from typing import Literal

import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

DEPTHS = {18: torchvision.models.resnet18, 34: torchvision.models.resnet34, 50: torchvision.models.resnet50}


def convnet(width: int = 32, classes: int = 10, channels: int = 3) -> nn.Sequential:
    """Build the demo's encoder, small enough to learn on two cores in a minute.

    Three 3×3 convolutions with BatchNorm and ReLU, of 1, 2 and 4 times `width` channels, then the mean over pixels.
    `classes=0` leaves the last layer out: the module then gives its 4·width features.
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
    """Build torchvision's ResNet; the CIFAR stem is a 3×3 convolution of stride 1 and no max-pooling.

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
    """Build ResNet-18 with the CIFAR stem: 11,173,962 parameters for ten classes."""
    return resnet(18, classes, channels, stem="cifar")


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class PyramidBlock(nn.Module):
    """x ↦ residual(x) + shortcut(x), the residual BN → conv → BN → ReLU → conv → BN (no ReLU first).

    The shortcut has no parameters: average pooling where the stride is 2, zeros for the channels that are new.
    """

    def __init__(self, inputs: int, planes: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        norm, relu = nn.BatchNorm2d, nn.ReLU
        layers: list[nn.Module] = [norm(inputs)]
        if bottleneck:
            layers += [_conv(inputs, planes, 1), norm(planes), relu(), _conv(planes, planes, 3, stride)]
            layers += [norm(planes), relu(), _conv(planes, 4 * planes, 1), norm(4 * planes)]
        else:
            layers += [_conv(inputs, planes, 3, stride), norm(planes), relu(), _conv(planes, planes, 3), norm(planes)]
        self.residual = nn.Sequential(*layers)
        self.shortcut = nn.AvgPool2d(2, ceil_mode=True) if stride == 2 else nn.Identity()
        self.new_channels = (4 * planes if bottleneck else planes) - inputs

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.shortcut(x)
        if self.new_channels:
            shortcut = F.pad(shortcut, (0, 0, 0, 0, 0, self.new_channels))
        return self.residual(x) + shortcut


class PyramidNet(nn.Module):
    """The CIFAR network of Han, Kim and Kim (2017): a pre-activation ResNet that widens a little with every block.

    A 3×3 stem, three stages of n blocks, BN, ReLU, global average, one linear layer `fc`. Block k of 3n has
    round(16 + k·α/(3n)) channels. With depth 110, α = 270 and 100 classes that makes the 28,511,307 parameters of the
    patching paper's Table 3.

    The defaults are those of the patching paper's CIFAR-100 experiments (Table 6). `classes=0` leaves `fc` out.
    """

    def __init__(
        self, depth: int = 110, alpha: float = 270, bottleneck: bool = False, classes: int = 100, channels: int = 3
    ) -> None:
        super().__init__()
        per_block = 9 if bottleneck else 6
        if depth < per_block + 2 or (depth - 2) % per_block:
            raise ValueError(f"A PyramidNet's depth is {per_block}n + 2 for a whole n > 0, not {depth}.")
        n = (depth - 2) // per_block
        expansion = 4 if bottleneck else 1
        self.stem = nn.Sequential(_conv(channels, 16, 3), nn.BatchNorm2d(16))
        width = 16
        stages = []
        for stage in range(3):
            blocks = []
            for k in range(stage * n + 1, (stage + 1) * n + 1):
                planes = round(16 + k * alpha / (3 * n))
                stride = 2 if stage and k == stage * n + 1 else 1
                blocks.append(PyramidBlock(width, planes, stride, bottleneck))
                width = planes * expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc: nn.Module = nn.Linear(width, classes or 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
                nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
        if not classes:
            self.fc = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.head(self.stages(self.stem(x))))


pyramidnet = PyramidNet
