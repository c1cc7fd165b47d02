"""Vision transformers for small images: timm's VisionTransformer, initialised as BYOV asks."""

from typing import Literal

from timm.layers import trunc_normal_
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from byov.models.patches import Patches

SIZES = {  # width, depth, heads
    "nano": (64, 4, 2),
    "mini": (192, 6, 3),
    "ti": (192, 12, 3),
    "s": (384, 12, 6),
    "b": (768, 12, 12),
}


def vit(
    size: str = "mini",
    classes: int = 10,
    channels: int = 3,
    image_size: int = 32,
    patch: int = 4,
    pool: Literal["token", "avg"] = "token",
    drop_path: float = 0.0,
) -> VisionTransformer:
    """A ViT of a named size: nano 64×4, mini 192×6, ti 192×12, s 384×12 or b 768×12 (width × depth).

    Every weight, the class token and the position embedding are drawn from trunc_normal(std 0.02), biases start at zero
    and norms at one. timm's own initialisation leaves the patch-embedding convolution at PyTorch's default, an order of
    magnitude wider, which a Gaussian posterior with one prior for all weights would notice. `classes=0` gives features.
    """
    if size not in SIZES:
        raise ValueError(f"A ViT's size is one of {', '.join(SIZES)}, not {size!r}.")
    if image_size % patch:
        raise ValueError(f"A patch of {patch} pixels does not divide images of {image_size} pixels.")
    width, depth, heads = SIZES[size]
    net = VisionTransformer(
        img_size=image_size,
        patch_size=patch,
        in_chans=channels,
        num_classes=classes,
        global_pool=pool,
        embed_dim=width,
        depth=depth,
        num_heads=heads,
        drop_path_rate=drop_path,
        class_token=pool == "token",
    )
    net.patch_embed.proj = Patches(channels, width, patch)
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            trunc_normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for extra in (net.pos_embed, net.cls_token):
        if extra is not None:
            trunc_normal_(extra, std=0.02)
    return net
