"""The blurs: defocus, frosted glass, motion and zoom."""

import numpy as np
import torch
from torch import Tensor

from byov.data import filters
from byov.data.geometry import clipped_zoom
from byov.data.shift import integers, shift, uniform


@shift(
    imagenet=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
)
def defocus_blur(images: Tensor, generator: torch.Generator | None, radius: float, alias_blur: float) -> Tensor:
    """Correlation with a disc: a lens out of focus. Nothing is random."""
    return filters.correlate(images, filters.disc_kernel(radius, alias_blur))


@shift(
    imagenet=((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    cifar=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
)
def glass_blur(images: Tensor, generator: torch.Generator | None, sigma: float, reach: int, iterations: int) -> Tensor:
    """Gaussian blur, pixels exchanged for near ones, Gaussian blur: frosted glass."""
    count, _, height, width = images.shape
    # The original stores eight bits here, cutting off; the addend keeps whole levels whole in floating point.
    blurred = (filters.gaussian_blur(images, sigma) * 255.0 + 1e-3).floor_() / 255.0
    rows, columns = max(height - 2 * reach, 0), max(width - 2 * reach, 0)
    if rows and columns:
        sources: Tensor | None = None
        for _ in range(iterations):
            offsets = integers((2, count, rows, columns), -reach, reach, images, generator)
            step = glass_sources(offsets[0], offsets[1], height, width, reach)
            sources = step if sources is None else sources.gather(1, step)
        if sources is not None:
            moved = blurred.flatten(2).gather(2, sources[:, None].expand(-1, images.shape[1], -1))
            blurred = moved.view(images.shape)
    return filters.gaussian_blur(blurred, sigma)


def glass_sources(down: Tensor, right: Tensor, height: int, width: int, reach: int) -> Tensor:
    """Where each pixel comes from, (N, H·W), after one pass of the original's sequential shuffle.

    The original visits the inner pixels from last to first and sets x[p] = x[p + offset(p)]. (It means to swap, but the
    two sides of its tuple assignment are views of one array, so that it copies.) The source was already overwritten
    exactly if it is an inner pixel behind p, and then holds its own source's value. Following these links to their end
    gives the same result for all pixels at once; doubling the links finds the ends.
    """
    device = down.device
    pixels = torch.arange(height * width, device=device).view(height, width)
    inner = slice(reach + 1, height - reach + 1), slice(reach + 1, width - reach + 1)
    copied = pixels.expand(down.shape[0], -1, -1).clone()
    copied[:, *inner] += down * width + right
    copied = copied.flatten(1)
    if reach == 1:  # the offsets are −1 and 0: no source was visited before
        return copied
    is_inner = torch.zeros(height, width, dtype=torch.bool, device=device)
    is_inner[inner] = True
    linked = (copied > pixels.flatten()) & is_inner.flatten()[copied]
    ends = torch.where(linked, copied, pixels.flatten())
    # A link goes on with a probability below 1/2, so that 2⁶ of them in a row do not happen (2⁻⁶⁴).
    for _ in range(6):
        ends = ends.gather(1, ends)
    return copied.gather(1, ends)


@shift(
    imagenet=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    cifar=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
)
def motion_blur(images: Tensor, generator: torch.Generator | None, radius: int, sigma: float) -> Tensor:
    """Half a Gaussian along a line at U(−45°, 45°), drawn for each image: a moving camera."""
    angles = uniform((images.shape[0],), -45.0, 45.0, images, generator)
    return filters.motion_blur(images, radius, sigma, angles)


@shift(
    imagenet=((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    cifar=((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
)
def zoom_blur(images: Tensor, generator: torch.Generator | None, stop: float, step: float) -> Tensor:
    """Mean of the image and its enlargements by 1, 1 + step, …: a camera that nears its object. Nothing is random."""
    factors = np.arange(1, stop, step).tolist()  # numpy's rounding decides how many there are and where the crops fall
    total = images + images  # the image and its enlargement by 1
    for factor in factors[1:]:
        total += clipped_zoom(images, factor)
    return total / (len(factors) + 1)
