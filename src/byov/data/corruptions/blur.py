"""The blurs: defocus, frosted glass, motion and zoom."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from byov.data import image_ops
from byov.data.shift import integers, shift, uniform


@shift(
    imagenet=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
)
def defocus_blur(images: Tensor, generator: torch.Generator | None, radius: float, alias_blur: float) -> Tensor:
    """Correlate with a disc: a lens out of focus. Nothing is random."""
    kernel = disc_kernel(radius, alias_blur)
    padded = image_ops.pad(images, len(kernel) // 2, len(kernel) // 2, "reflect")
    # One group per plane takes the depthwise path: on a CPU ten times as fast as planes in the batch dimension.
    planes = padded.reshape(1, -1, *padded.shape[-2:])
    weights = kernel.to(images).expand(planes.shape[1], 1, *kernel.shape)
    return F.conv2d(planes, weights, groups=planes.shape[1]).reshape(images.shape)


def disc_kernel(radius: float, alias_blur: float) -> Tensor:
    """Return a disc of the given radius, smoothed by a small Gaussian against aliasing (ImageNet-C's lens).

    The zero margin that the original keeps around small discs is cropped; this only affects speed.
    """
    reach = max(8, math.ceil(radius))
    taps = torch.arange(-reach, reach + 1, dtype=torch.float64)
    disc = ((taps[:, None] ** 2 + taps**2) <= radius**2).double()
    matrix = image_ops.gaussian_matrix(len(taps), alias_blur, 1 if radius <= 8 else 2, "reflect")
    kernel = matrix @ (disc / disc.sum()) @ matrix.T
    margin = int((kernel.sum(0) > 1e-12).nonzero()[0])
    return kernel[margin : len(taps) - margin, margin : len(taps) - margin].contiguous()


@shift(
    imagenet=((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    cifar=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
)
def glass_blur(images: Tensor, generator: torch.Generator | None, sigma: float, reach: int, iterations: int) -> Tensor:
    """Blur with a Gaussian, replace pixels by nearby ones, blur again: frosted glass."""
    count, _, height, width = images.shape
    # The original truncates to eight bits here; the addend keeps integer levels from being rounded down.
    blurred = (image_ops.gaussian_blur(images, sigma) * 255.0 + 1e-3).floor_() / 255.0
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
    return image_ops.gaussian_blur(blurred, sigma)


def glass_sources(down: Tensor, right: Tensor, height: int, width: int, reach: int) -> Tensor:
    """Return where each pixel comes from, (N, H·W), after one pass of the original's sequential shuffle.

    The original visits the inner pixels from last to first and sets x[p] = x[p + offset(p)]. (It is meant to swap, but
    the two sides of its tuple assignment are views of one array, so it copies.) The source has already been overwritten
    exactly if it is an inner pixel after p, and then holds its own source's value. Following these links to their end
    gives the same result for all pixels at once; repeated doubling finds the ends.
    """
    device = down.device
    pixels = torch.arange(height * width, device=device).view(height, width)
    inner = slice(reach + 1, height - reach + 1), slice(reach + 1, width - reach + 1)
    copied = pixels.expand(down.shape[0], -1, -1).clone()
    copied[:, *inner] += down * width + right
    copied = copied.flatten(1)
    if reach == 1:  # the offsets are −1 and 0: no source was visited earlier
        return copied
    is_inner = torch.zeros(height, width, dtype=torch.bool, device=device)
    is_inner[inner] = True
    linked = (copied > pixels.flatten()) & is_inner.flatten()[copied]
    ends = torch.where(linked, copied, pixels.flatten())
    # A link continues with a probability below 1/2, so chains of 2⁶ links do not occur in practice (2⁻⁶⁴).
    for _ in range(6):
        ends = ends.gather(1, ends)
    return copied.gather(1, ends)


@shift(
    imagenet=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    cifar=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
)
def motion_blur(images: Tensor, generator: torch.Generator | None, radius: int, sigma: float) -> Tensor:
    """Blur with half a Gaussian along a line at U(−45°, 45°), drawn for each image: a moving camera."""
    angles = uniform((images.shape[0],), -45.0, 45.0, images, generator)
    return image_ops.motion_blur(images, radius, sigma, angles)


@shift(
    imagenet=((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    cifar=((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
)
def zoom_blur(images: Tensor, generator: torch.Generator | None, stop: float, step: float) -> Tensor:
    """Average enlargements of the image by 1, 1 + step, …: a camera moving towards its subject. Nothing is random."""
    factors = np.arange(1, stop, step).tolist()  # numpy's rounding decides their number and the crops
    height, width = images.shape[-2:]
    total = images + images  # the image and its enlargement by 1
    for factor in factors[1:]:
        (top, tall), (left, wide) = image_ops.zoom_crop(height, factor), image_ops.zoom_crop(width, factor)
        total += image_ops.enlarge(images[..., top : top + tall, left : left + wide], factor, height, width)
    return total / (len(factors) + 1)
