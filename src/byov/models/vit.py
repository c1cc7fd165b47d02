"""Vision transformers for small images: timm's VisionTransformer, initialised as BYOV asks."""

from typing import Any, Literal

from timm.layers import trunc_normal_
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import linear

SIZES: dict[str, dict[str, Any]] = {
    "nano": {"embed_dim": 64, "depth": 4, "num_heads": 2},
    "mini": {"embed_dim": 192, "depth": 6, "num_heads": 3},
    "ti": {"embed_dim": 192, "depth": 12, "num_heads": 3},
    "s": {"embed_dim": 384, "depth": 12, "num_heads": 6},
    "b": {"embed_dim": 768, "depth": 12, "num_heads": 12},
}


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
        return linear(pixels, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)


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

    Every weight, the class token and the position embedding are drawn from trunc_normal(std 0.02), biases start at zero
    and norms at one. timm's own initialisation leaves the patch-embedding convolution at PyTorch's default, an order of
    magnitude wider, which a Gaussian posterior with one prior for all weights would notice. `classes=0` gives features.
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
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for extra in (net.pos_embed, net.cls_token):
        if extra is not None:
            trunc_normal_(extra, std=0.02)
    return net
