"""Blurs, warps and colour arithmetic on a batch of images, with the border handling of the libraries they mirror.

Border modes are named by how a row a b c d continues to the left:
"reflect" c b | a b c d (OpenCV's default), "symmetric" b a | a b c d (scipy's "reflect"), "edge" a a | a b c d.
"""

import math

import torch
import torch.nn.functional as F
import torchvision.transforms.v2.functional as v2
from torch import Tensor


def border_index(positions: Tensor, length: int, border: str) -> Tensor:
    """Map integer positions, however far outside the image, to pixel indices 0, …, length − 1."""
    if border == "edge" or length == 1:
        return positions.clamp(0, length - 1)
    period, mirror = {"reflect": (2 * length - 2, 0), "symmetric": (2 * length, 1)}[border]
    wrapped = positions.remainder(period)
    return torch.minimum(wrapped, period - mirror - wrapped)


def pad(images: Tensor, rows: int, columns: int, border: str) -> Tensor:
    """Pad the images by `rows` above and below and by `columns` left and right."""
    height, width = images.shape[-2:]
    device = images.device
    vertical = border_index(torch.arange(-rows, height + rows, device=device), height, border)
    horizontal = border_index(torch.arange(-columns, width + columns, device=device), width, border)
    return images.index_select(-2, vertical).index_select(-1, horizontal)


def gaussian_matrix(length: int, sigma: float, radius: int, border: str) -> Tensor:
    """Return the length × length matrix, in double precision, that blurs a row by exp(−i²/2σ²), |i| ≤ radius.

    This works for any σ, even if the kernel is wider than the image, and makes the blur two matrix products.
    """
    taps = torch.arange(-radius, radius + 1)
    kernel = torch.exp(-0.5 * (taps.double() / sigma) ** 2)
    rows = torch.arange(length)[:, None]
    sources = border_index(rows + taps, length, border)
    matrix = torch.zeros(length, length, dtype=torch.float64)
    weights = (kernel / kernel.sum()).expand(sources.shape)
    return matrix.index_put_((rows.expand_as(sources), sources), weights, accumulate=True)


def gaussian_blur(images: Tensor, sigma: float, truncate: float = 4.0, border: str = "edge") -> Tensor:
    """Blur as scikit-image does: a Gaussian cut at `truncate` σ, with borders extended by the edge pixel."""
    radius = int(truncate * sigma + 0.5)
    if radius == 0:
        return images
    height, width = images.shape[-2:]
    down = gaussian_matrix(height, sigma, radius, border).to(images)
    across = down if height == width else gaussian_matrix(width, sigma, radius, border).to(images)
    return down @ images @ across.T


def motion_blur(images: Tensor, radius: int, sigma: float, angles: Tensor) -> Tensor:
    """Blur every image along its own angle (degrees, shape (N,)) with half a Gaussian, as ImageMagick does.

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

    # Each shifted row is a window of a row padded on both sides, so a tap copies whole rows, not single pixels.
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


def pixel_grid(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the row and column of every pixel, shapes (H, 1) and (1, W)."""
    height, width = images.shape[-2:]
    rows = torch.arange(height, dtype=images.dtype, device=images.device)
    columns = torch.arange(width, dtype=images.dtype, device=images.device)
    return rows[:, None], columns[None, :]


def warp(images: Tensor, rows: Tensor, columns: Tensor, border: str) -> Tensor:
    """Sample the images bilinearly at (rows, columns) in pixels, each of shape (N, H, W); "black" is zero outside."""
    # grid_sample reflects about the border pixels' centres or about their outer edges, depending on align_corners.
    padding, corners = {
        "reflect": ("reflection", True),
        "symmetric": ("reflection", False),
        "edge": ("border", True),
        "black": ("zeros", True),
    }[border]
    height, width = images.shape[-2:]

    def normalised(position: Tensor, length: int) -> Tensor:
        if corners:
            return position * (2.0 / max(length - 1, 1)) - 1.0
        return (position + 0.5) * (2.0 / length) - 1.0

    grid = torch.stack((normalised(columns, width), normalised(rows, height)), dim=-1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=padding, align_corners=corners)


def displace(images: Tensor, field: Tensor) -> Tensor:
    """Move every pixel by its own distance, field (2, N, H, W) in pixels down and right, with symmetric borders."""
    rows, columns = pixel_grid(images)
    return warp(images, rows + field[0], columns + field[1], "symmetric")


def affine(images: Tensor, matrices: Tensor, border: str) -> Tensor:
    """Warp every image by its own 2×3 matrix, which maps (column, row, 1) of the output to its source in the input."""
    rows, columns = pixel_grid(images)
    m = matrices.to(images)[:, :, :, None, None]
    source_columns, source_rows = (m[:, i, 0] * columns + m[:, i, 1] * rows + m[:, i, 2] for i in (0, 1))
    return warp(images, source_rows, source_columns, border)


def zoom_crop(length: int, factor: float) -> tuple[int, int]:
    """Return the first pixel and length of the centre part that fills `length` pixels when enlarged by `factor`."""
    kept = math.ceil(length / factor)
    return (length - kept) // 2, kept


def enlarge(crop: Tensor, factor: float, height: int, width: int) -> Tensor:
    """Enlarge a centre crop by `factor` (scipy's linear `zoom`, corners on corners) and cut it to height × width."""
    tall, wide = round(crop.shape[-2] * factor), round(crop.shape[-1] * factor)
    zoomed = F.interpolate(crop, size=(tall, wide), mode="bilinear", align_corners=True)
    top, left = (tall - height) // 2, (wide - width) // 2
    return zoomed[..., top : top + height, left : left + width]


def luma(images: Tensor) -> Tensor:
    """Return grey (N, 1, H, W): 0.299 R + 0.587 G + 0.114 B; a single channel is its own grey."""
    if images.shape[1] == 1:
        return images
    return 0.299 * images[:, 0:1] + 0.587 * images[:, 1:2] + 0.114 * images[:, 2:3]


def jpeg(images: Tensor, quality: int) -> Tensor:
    """Return the images in [0, 1] after a round trip through libjpeg at `quality` (1–100), which runs on the CPU."""
    return v2.jpeg((images * 255.0).round_().byte().cpu(), quality).to(images) / 255.0
