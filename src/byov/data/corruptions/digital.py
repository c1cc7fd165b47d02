"""The digital ones: contrast, elastic transform, pixelation and JPEG."""

import torch
from torch import Tensor

from byov.data.geometry import affine, box_resize, pixel_grid, smooth_displacement, warp
from byov.data.jpeg import jpeg
from byov.data.shift import shift, uniform


@shift(imagenet=(0.4, 0.3, 0.2, 0.1, 0.05), cifar=(0.75, 0.5, 0.4, 0.3, 0.15))
def contrast(images: Tensor, generator: torch.Generator | None, factor: float) -> Tensor:
    """m + factor·(x − m), with m each channel's mean over the image. Nothing is random."""
    return torch.lerp(images.mean(dim=(2, 3), keepdim=True), images, factor)


_PIXELS = 244 / 224  # the original multiplies by 244 where it means 224; its data are made so


@shift(
    imagenet=tuple(
        (alpha * _PIXELS, sigma * _PIXELS, jitter * _PIXELS)
        for alpha, sigma, jitter in (
            (2.0, 0.7, 0.1),
            (2.0, 0.08, 0.2),
            (0.05, 0.01, 0.02),
            (0.07, 0.01, 0.02),
            (0.12, 0.01, 0.02),
        )
    ),
    cifar=((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
)
def elastic_transform(
    images: Tensor, generator: torch.Generator | None, alpha: float, sigma: float, jitter: float
) -> Tensor:
    """A random affine map, then a smooth random displacement; the three strengths are in units of the image's side.

    Three points about the centre move by U(−jitter, jitter) each way; the displacement is U(−1, 1) noise, blurred by σ,
    times α. The original is written for 224 and 32 pixels only.
    """
    side = min(images.shape[-2:])
    moved = affine(images, jittered_affine(images, jitter * side, generator), "reflect")
    if alpha == 0.0:
        return moved
    down, right = smooth_displacement(images, sigma * side, generator)
    rows, columns = pixel_grid(images)
    return warp(moved, rows + alpha * side * down, columns + alpha * side * right, "symmetric")


def jittered_affine(images: Tensor, amplitude: float, generator: torch.Generator | None) -> Tensor:
    """The map (N, 2, 3) from result to source that takes three jittered points back to where they were."""
    count, _, height, width = images.shape
    reach = min(height, width) // 3
    # OpenCV reads points as (x, y), the original makes them from (height, width): for square images it is the same.
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
    """Shrunk by a box filter to the factor and enlarged again. Nothing is random."""
    height, width = images.shape[-2:]
    small = box_resize(images, max(1, int(height * factor)), max(1, int(width * factor)))
    return box_resize(small, height, width)


@shift(imagenet=(25, 18, 15, 10, 7), cifar=(80, 65, 58, 50, 40))
def jpeg_compression(images: Tensor, generator: torch.Generator | None, quality: int) -> Tensor:
    """JPEG at the given quality. Nothing is random."""
    return jpeg(images, quality)
