"""Colour arithmetic on a batch of images."""

import torch
from torch import Tensor


def luma(images: Tensor) -> Tensor:
    """Grey (N, 1, H, W): 0.299 R + 0.587 G + 0.114 B; a single channel is its own grey."""
    if images.shape[1] == 1:
        return images
    return 0.299 * images[:, 0:1] + 0.587 * images[:, 1:2] + 0.114 * images[:, 2:3]


def add_value(images: Tensor, amount: float) -> Tensor:
    """Add to V of HSV, keeping hue and saturation.

    RGB is V times a function of hue and saturation, so the sum is a scaling by V'/V; black has no hue and becomes grey.
    """
    value = images.amax(dim=1, keepdim=True)
    raised = (value + amount).clamp(0.0, 1.0)
    return torch.where(value > 0, images * (raised / value.clamp(min=1e-12)), raised)


def rotate_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of every image by its own part of the colour circle (shape (N,)), keeping S and V of HSV."""
    high, low = images.amax(dim=1, keepdim=True), images.amin(dim=1, keepdim=True)
    chroma = high - low
    safe = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    red, green, blue = images.split(1, dim=1)
    sextant = torch.where(
        high == red,
        (green - blue) / safe,
        torch.where(high == green, 2.0 + (blue - red) / safe, 4.0 + (red - green) / safe),
    )
    sextant = sextant + 6.0 * turns.to(images).view(-1, 1, 1, 1)
    # A channel is V − C·clamp(min(k, 4 − k), 0, 1) with k = (n + hue in sixths) mod 6 and n = 5, 3, 1 for R, G, B.
    n = torch.tensor([5.0, 3.0, 1.0], dtype=images.dtype, device=images.device).view(1, 3, 1, 1)
    k = (n + sextant).remainder(6.0)
    return high - chroma * torch.minimum(k, 4.0 - k).clamp(0.0, 1.0)
