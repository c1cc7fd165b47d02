"""The digital corruptions: contrast, elastic transform, pixelation and JPEG."""

import math

import torch
from torch import Tensor

from byov.data import image_ops
from byov.data.shift import shift, smooth_noise, uniform


@shift(imagenet=(0.4, 0.3, 0.2, 0.1, 0.05), cifar=(0.75, 0.5, 0.4, 0.3, 0.15))
def contrast(images: Tensor, generator: torch.Generator | None, factor: float) -> Tensor:
    """Return m + factor·(x − m), with m each channel's mean over the image. Nothing is random."""
    return torch.lerp(images.mean(dim=(2, 3), keepdim=True), images, factor)


_PIXELS = 244 / 224  # the original multiplies by 244 instead of 224, and its data were made this way
_ELASTIC = ((2.0, 0.7, 0.1), (2.0, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))


@shift(
    imagenet=tuple(tuple(strength * _PIXELS for strength in row) for row in _ELASTIC),
    cifar=((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
)
def elastic_transform(
    images: Tensor, generator: torch.Generator | None, alpha: float, sigma: float, jitter: float
) -> Tensor:
    """Apply a random affine map, then a smooth random displacement; the strengths are in units of the shorter side.

    Three points around the centre move by U(−jitter, jitter) along each axis; the displacement is U(−1, 1) noise,
    blurred by σ, times α. The original is written for 224 and 32 pixels only.
    """
    side = min(images.shape[-2:])
    moved = image_ops.affine(images, jittered_affine(images, jitter * side, generator), "reflect")
    if alpha == 0.0:
        return moved
    return image_ops.displace(moved, alpha * side * smooth_noise(images, sigma * side, generator))


def jittered_affine(images: Tensor, amplitude: float, generator: torch.Generator | None) -> Tensor:
    """Return the map (N, 2, 3) from output to input that moves three jittered points back to where they were."""
    count, _, height, width = images.shape
    reach = min(height, width) // 3
    # OpenCV reads points as (x, y), the original makes them from (height, width): no difference for square images.
    y, x = float(height // 2), float(width // 2)
    points = torch.tensor(
        [[y + reach, x + reach], [y + reach, x - reach], [y - reach, x - reach]],
        dtype=torch.float64,
        device=images.device,
    )
    jittered = points + uniform((count, 3, 2), -amplitude, amplitude, images, generator).double()
    homogeneous = torch.cat((jittered, torch.ones(count, 3, 1, dtype=torch.float64, device=images.device)), dim=2)
    return torch.linalg.solve(homogeneous, points.expand(count, 3, 2)).transpose(1, 2)


@shift(imagenet=(0.6, 0.5, 0.4, 0.3, 0.25), cifar=(0.95, 0.9, 0.85, 0.75, 0.65))
def pixelate(images: Tensor, generator: torch.Generator | None, factor: float) -> Tensor:
    """Shrink by `factor` with a box filter and enlarge again. Nothing is random."""
    height, width = images.shape[-2:]
    small = box_resize(images, max(1, int(height * factor)), max(1, int(width * factor)))
    return box_resize(small, height, width)


def box_taps(length: int, resized: int) -> tuple[Tensor, Tensor]:
    """Return sources and weights (resized, taps) of Pillow's BOX filter, which counts whole pixels only."""
    scale = length / resized
    support = 0.5 * max(scale, 1.0)
    centres = (torch.arange(resized, dtype=torch.float64) + 0.5) * scale
    first = (centres - support + 0.5).floor().clamp(min=0)
    last = (centres + support + 0.5).floor().clamp(max=length)
    sources = first[:, None] + torch.arange(math.ceil(2 * support) + 1)
    distance = (sources - centres[:, None] + 0.5) / max(scale, 1.0)
    weights = ((sources < last[:, None]) & (distance > -0.5) & (distance <= 0.5)).double()
    used = weights.sum(0) > 0
    return sources.clamp(max=length - 1).long()[:, used], (weights / weights.sum(1, keepdim=True))[:, used]


def box_resize(images: Tensor, height: int, width: int) -> Tensor:
    """Resize with Pillow's BOX filter, up or down."""
    for dim, resized in ((-1, width), (-2, height)):
        sources, weights = box_taps(images.shape[dim], resized)
        sources = sources.to(images.device)
        shape = (-1, 1) if dim == -2 else (-1,)
        total = torch.zeros(())
        for tap in range(sources.shape[1]):
            part = images.index_select(dim, sources[:, tap])
            if bool((weights[:, tap] != 1.0).any()):
                part = part * weights[:, tap].to(images).view(shape)
            total = part if tap == 0 else total + part
        images = total
    return images


@shift(imagenet=(25, 18, 15, 10, 7), cifar=(80, 65, 58, 50, 40))
def jpeg_compression(images: Tensor, generator: torch.Generator | None, quality: int) -> Tensor:
    """Compress as JPEG at the given quality. Nothing is random."""
    return image_ops.jpeg(images, quality)
