"""Vision transformers for small images, and their initialisation in BYOV."""

from typing import Any, Literal

import torch.nn.functional as F
from timm.layers import trunc_normal_
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

SIZES: dict[str, dict[str, Any]] = {
    "nano": {"embed_dim": 64, "depth": 4, "num_heads": 2},
    "mini": {"embed_dim": 192, "depth": 6, "num_heads": 3},
    "ti": {"embed_dim": 192, "depth": 12, "num_heads": 3},
    "s": {"embed_dim": 384, "depth": 12, "num_heads": 6},
    "b": {"embed_dim": 768, "depth": 12, "num_heads": 12},
}
TOKENS = ("pos_embed", "cls_token", "reg_token", "dist_token")


class Patches(nn.Conv2d):
    """The patch embedding as one matrix product: a convolution whose stride equals its kernel reads no pixel twice.

    The weight gradient of a convolution is slow for kernels of 16 × 16: together with the reordering of memory around
    it, it took a thirteenth of the training step of a ViT-S/16 on an H200.
    """

    def __init__(self, channels: int, width: int, patch: int, bias: bool = True) -> None:
        super().__init__(channels, width, patch, stride=patch, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, width, H/p, W/p), like the convolution; incomplete patches are ignored."""
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

    It is initialised by `start_as_byov`, norms at one. With `classes=0` it returns features.
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

    timm leaves the patch embedding at PyTorch's default, which is uniform, has biases and is four times as wide for
    patches of 4 pixels, and the class token at 10⁻⁶. This would affect a Gaussian posterior relative to that scale.
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
