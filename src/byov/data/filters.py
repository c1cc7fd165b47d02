"""Linear filters on a batch of images: Gaussian, disc and motion blur, with the borders of the libraries they mirror.

Border modes are named by what a row a b c d continues with on the left:
"reflect" c b | a b c d (OpenCV's default), "symmetric" b a | a b c d (scipy's "reflect"), "edge" a a | a b c d.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def border_index(positions: Tensor, length: int, border: str) -> Tensor:
    """The pixel in 0, …, length − 1 that stands at each whole position, however far outside it lies."""
    if border == "edge" or length == 1:
        return positions.clamp(0, length - 1)
    period, mirror = {"reflect": (2 * length - 2, 0), "symmetric": (2 * length, 1)}[border]
    wrapped = positions.remainder(period)
    return torch.minimum(wrapped, period - mirror - wrapped)


def pad(images: Tensor, rows: int, columns: int, border: str) -> Tensor:
    """Continue the images by `rows` above and below and by `columns` left and right."""
    height, width = images.shape[-2:]
    device = images.device
    vertical = border_index(torch.arange(-rows, height + rows, device=device), height, border)
    horizontal = border_index(torch.arange(-columns, width + columns, device=device), width, border)
    return images.index_select(-2, vertical).index_select(-1, horizontal)


def gaussian_kernel(sigma: float, radius: int) -> Tensor:
    """exp(−i²/2σ²) for |i| ≤ radius, normalised, in double precision."""
    taps = torch.arange(-radius, radius + 1, dtype=torch.float64)
    kernel = torch.exp(-0.5 * (taps / sigma) ** 2)
    return kernel / kernel.sum()


def gaussian_matrix(length: int, sigma: float, truncate: float, border: str, like: Tensor) -> Tensor:
    """The length × length matrix that blurs a row by a Gaussian cut off at `truncate` σ.

    A matrix takes any σ, also one whose kernel is wider than the image, and makes the blur two matrix products.
    """
    radius = int(truncate * sigma + 0.5)
    kernel = gaussian_kernel(sigma, radius) if radius > 0 else torch.ones(1, dtype=torch.float64)
    rows = torch.arange(length)
    sources = border_index(rows[:, None] + torch.arange(-radius, radius + 1), length, border)
    matrix = torch.zeros(length, length, dtype=torch.float64)
    matrix.index_put_((rows[:, None].expand_as(sources), sources), kernel.expand(sources.shape), accumulate=True)
    return matrix.to(like)


def gaussian_blur(images: Tensor, sigma: float, truncate: float = 4.0, border: str = "edge") -> Tensor:
    """Gaussian blur as scikit-image does it: kernel cut at 4σ, borders continued by the edge pixel."""
    if int(truncate * sigma + 0.5) == 0:
        return images
    height, width = images.shape[-2:]
    down = gaussian_matrix(height, sigma, truncate, border, images)
    across = down if height == width else gaussian_matrix(width, sigma, truncate, border, images)
    return down @ images @ across.T


def disc_kernel(radius: float, alias_blur: float) -> Tensor:
    """A disc of the given radius, smoothed by a small Gaussian against aliasing (ImageNet-C's lens).

    The zero margin that the original keeps around small discs is cut away; it changes nothing but the time.
    """
    reach = max(8, math.ceil(radius))
    taps = torch.arange(-reach, reach + 1, dtype=torch.float64)
    disc = ((taps[:, None] ** 2 + taps**2) <= radius**2).double()
    smoothing = 1 if radius <= 8 else 2
    matrix = torch.zeros(len(taps), len(taps), dtype=torch.float64)
    rows = torch.arange(len(taps))
    for offset, weight in zip(range(-smoothing, smoothing + 1), gaussian_kernel(alias_blur, smoothing), strict=True):
        matrix.index_put_((rows, border_index(rows + offset, len(taps), "reflect")), weight, accumulate=True)
    kernel = matrix @ (disc / disc.sum()) @ matrix.T
    margin = int((kernel.sum(0) > 1e-12).nonzero()[0])
    return kernel[margin : len(taps) - margin, margin : len(taps) - margin].contiguous()


def correlate(images: Tensor, kernel: Tensor, border: str = "reflect") -> Tensor:
    """Correlate every channel with one odd-sized kernel (OpenCV's `filter2D`)."""
    rows, columns = (length // 2 for length in kernel.shape)
    padded = pad(images, rows, columns, border)
    # One group per plane takes the depthwise path, on a CPU ten times as fast as planes in the batch dimension.
    planes = padded.reshape(1, -1, *padded.shape[-2:])
    weights = kernel.to(images).expand(planes.shape[1], 1, *kernel.shape)
    return F.conv2d(planes, weights, groups=planes.shape[1]).reshape(images.shape)


def motion_blur(images: Tensor, radius: int, sigma: float, angles: Tensor) -> Tensor:
    """Blur every image along its own angle (degrees, shape (N,)) by one half of a Gaussian, as ImageMagick does.

    out(p) = Σᵢ kᵢ in(p + oᵢ) with oᵢ = ⌈i·(sin, cos) − ½⌉ in rows and columns, kᵢ ∝ exp(−i²/2σ²), i = 0, …, 2·radius,
    and the edge pixel beyond the border.
    """
    count, channels, height, width = images.shape
    taps = 2 * radius + 1
    steps = torch.arange(taps, device=images.device, dtype=torch.float64)
    weights = torch.exp(-0.5 * (steps / sigma) ** 2)
    direction = torch.deg2rad(angles.to(torch.float64))[:, None]
    down = torch.ceil(steps * torch.sin(direction) - 0.5).long()  # (N, taps)
    right = torch.ceil(steps * torch.cos(direction) - 0.5).long()

    # Each shifted row is a window of a row continued to both sides, so a tap copies whole rows and no single pixels.
    padded = pad(images, 0, taps - 1, "edge")
    stride = padded.shape[-1]
    windows = padded.as_strided((padded.numel() - width + 1, width), (1, 1))
    planes = torch.arange(count * channels, device=images.device).view(count, channels, 1) * (height * stride)
    rows = torch.arange(height, device=images.device)
    blurred = torch.zeros(count * channels * height, width, dtype=images.dtype, device=images.device)
    for tap, weight in enumerate((weights / weights.sum()).tolist()):
        row = (rows + down[:, tap, None]).clamp_(0, height - 1)  # (N, H)
        start = planes + (row * stride + right[:, tap, None] + taps - 1)[:, None]
        blurred.add_(windows.index_select(0, start.flatten()), alpha=weight)
    return blurred.view(images.shape)
