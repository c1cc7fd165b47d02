"""PyramidNet (Han, Kim and Kim 2017), as the patching paper trains it on CIFAR."""

import math

import torch.nn.functional as F
from torch import Tensor, nn


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class PyramidBlock(nn.Module):
    """x ↦ residual(x) + shortcut(x), where the residual is BN → conv → BN → ReLU → conv → BN (no ReLU first).

    The shortcut has no parameters: average pooling if the stride is 2, and zeros for new channels.
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

    It has a 3×3 stem, three stages of n blocks, BN, ReLU, global average pooling and a linear layer `fc`. Block k of 3n
    has round(16 + k·α/(3n)) channels. Depth 110, α = 270 and 100 classes give the 28,511,307 parameters of the patching
    paper's Table 3.

    The defaults are those of the patching paper's CIFAR-100 experiments (Table 6). `classes=0` omits `fc`.
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
