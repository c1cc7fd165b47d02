"""The papers' networks: fully connected, convolutional, PyramidNet, and vision transformers for small images."""

import math
from typing import Any, Literal

import torch.nn.functional as F
import torchvision
from timm.layers import trunc_normal_
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

DEPTHS = {18: torchvision.models.resnet18, 34: torchvision.models.resnet34, 50: torchvision.models.resnet50}
SIZES: dict[str, dict[str, Any]] = {
    "nano": {"embed_dim": 64, "depth": 4, "num_heads": 2},
    "mini": {"embed_dim": 192, "depth": 6, "num_heads": 3},
    "ti": {"embed_dim": 192, "depth": 12, "num_heads": 3},
    "s": {"embed_dim": 384, "depth": 12, "num_heads": 6},
    "b": {"embed_dim": 768, "depth": 12, "num_heads": 12},
}
TOKENS = ("pos_embed", "cls_token", "reg_token", "dist_token")


def regression_mlp(
    features: int, hidden: int = 50, targets: int = 1, norm: bool = True, gamma: float = 0.2, dropout: float = 0.0
) -> nn.Sequential:
    """Build the regression network of the patching paper (D.7): one hidden ReLU layer.

    "BN/dropout … after the input and the hidden layer":
    x → BN → (dropout) → Linear → ReLU → BN → (dropout) → Linear, with BN's γ initialised at `gamma` (0.2 in the paper).
    The paper does not say on which side of the ReLU the second BN sits; it names BN and dropout in one breath, and
    dropout goes after the activation. `norm=False` is the explicit ensemble's network; Year and Protein have 100 units.
    """
    if min(features, hidden, targets) < 1:
        raise ValueError(f"features, hidden and targets are at least 1, not {features}, {hidden} and {targets}.")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout is a probability below 1, not {dropout}.")

    def after(width: int) -> list[nn.Module]:
        layers: list[nn.Module] = []
        if norm:
            layers.append(nn.BatchNorm1d(width))
            nn.init.constant_(layers[0].weight, gamma)  # type: ignore[arg-type]
        if dropout:
            layers.append(nn.Dropout(dropout))
        return layers

    return nn.Sequential(
        *after(features), nn.Linear(features, hidden), nn.ReLU(), *after(hidden), nn.Linear(hidden, targets)
    )


def table3_mlp(layers: int = 100, hidden: int = 100, features: int = 1, classes: int = 100) -> nn.Sequential:
    """Build the MLP of the patching paper's Table 3, L = 100 layers of H = 100 units.

    The paper gives only three totals: 1,009,900 for the network, 1,129,100 with its BN and output layers patched five
    times, 5,049,500 for five copies. The first two leave 29,800 parameters to the patch, which is 99 BN layers (200
    each) and an output of 100×100 without a bias; the other 980,100 are 98 hidden layers of 100×100 and a first layer
    from one input, all without biases (BN's shift makes them redundant).
    """
    if layers < 2:
        raise ValueError(f"This network has an input and an output layer, so at least 2 layers, not {layers}.")
    body: list[nn.Module] = []
    for index in range(layers - 1):
        body += [nn.Linear(hidden if index else features, hidden, bias=False), nn.BatchNorm1d(hidden), nn.ReLU()]
    return nn.Sequential(*body, nn.Linear(hidden, classes, bias=False))


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


class Patches(nn.Conv2d):
    """The patch embedding as one matrix product: a convolution whose stride is its kernel reads no pixel twice.

    A convolution's gradient by its weights is slow for kernels of 16 × 16: with the reordering around it, it took a
    thirteenth of a ViT-S/16's training step on an H200.
    """

    def __init__(self, channels: int, width: int, patch: int, bias: bool = True) -> None:
        super().__init__(channels, width, patch, stride=patch, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, width, H/p, W/p), as the convolution; what does not fill a patch is left out."""
        p = self.kernel_size[0]
        if min(x.shape[-2:]) < p:
            raise ValueError(f"A patch of {p} pixels does not fit into images of {x.shape[-2]} × {x.shape[-1]}.")
        rows, columns = x.shape[-2] // p, x.shape[-1] // p
        cut = x[..., : rows * p, : columns * p].unflatten(-2, (rows, p)).unflatten(-1, (columns, p))
        pixels = cut.permute(0, 2, 4, 1, 3, 5).flatten(3)  # (N, rows, columns, C·p·p)
        return F.linear(pixels, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


def vit(
    size: str = "mini",
    classes: int = 10,
    channels: int = 3,
    image_size: int = 32,
    patch: int = 4,
    pool: Literal["token", "avg"] = "token",
    drop_path: float = 0.0,
) -> VisionTransformer:
    """Build a ViT of a named size: nano 64×4, mini 192×6, ti 192×12, s 384×12 or b 768×12 (width × depth).

    It starts as `start_as_byov` says, norms at one. `classes=0` gives features.
    """
    if size not in SIZES:
        raise ValueError(f"A ViT's size is one of {', '.join(SIZES)}, not {size!r}.")
    if image_size % patch:
        raise ValueError(f"A patch of {patch} pixels does not divide images of {image_size} pixels.")
    net = VisionTransformer(
        img_size=image_size,
        patch_size=patch,
        in_chans=channels,
        num_classes=classes,
        global_pool=pool,
        drop_path_rate=drop_path,
        class_token=pool == "token",
        **SIZES[size],
    )
    net.patch_embed.proj = Patches(channels, net.embed_dim, patch)
    return start_as_byov(net)


def start_as_byov(net: VisionTransformer) -> VisionTransformer:
    """Draw all weights, tokens and the position embedding from trunc_normal(std 0.02), biases zero (BYOV, appendix C).

    timm's own start leaves the patch embedding at PyTorch's default, which is uniform, has biases and is four times as
    wide for patches of 4 pixels, and the class token at 10⁻⁶: a Gaussian posterior relative to its scale would notice.
    """
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for extra in (getattr(net, name, None) for name in TOKENS):
        if extra is not None:
            trunc_normal_(extra, std=0.02)
    return net
