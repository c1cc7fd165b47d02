"""Moving pixels in a batch of images: warps, zooms and box resampling."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from byov.data.filters import gaussian_matrix
from byov.data.shift import uniform


def pixel_grid(images: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of every pixel, shapes (H, 1) and (1, W)."""
    height, width = images.shape[-2:]
    rows = torch.arange(height, dtype=images.dtype, device=images.device)
    columns = torch.arange(width, dtype=images.dtype, device=images.device)
    return rows[:, None], columns[None, :]


def warp(images: Tensor, rows: Tensor, columns: Tensor, border: str) -> Tensor:
    """Bilinear values of the images at (rows, columns), each of shape (N, H, W), in pixels.

    Borders are those of `byov.data.filters` ("reflect", "symmetric", "edge"), and "black", which is zero outside.
    """
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


def affine(images: Tensor, matrices: Tensor, border: str) -> Tensor:
    """Warp every image by its own 2×3 matrix, which takes (column, row, 1) of the result to the place it comes from."""
    rows, columns = pixel_grid(images)
    m = matrices.to(images)[:, :, :, None, None]
    return warp(
        images,
        m[:, 1, 0] * columns + m[:, 1, 1] * rows + m[:, 1, 2],
        m[:, 0, 0] * columns + m[:, 0, 1] * rows + m[:, 0, 2],
        border,
    )


def affine_about_centre(images: Tensor, linear: Tensor, border: str) -> Tensor:
    """Warp by a linear map (N, 2, 2) about the centre of the image; it takes places in the result to their sources."""
    height, width = images.shape[-2:]
    centre = torch.tensor([(width - 1) / 2, (height - 1) / 2], dtype=images.dtype, device=images.device)
    offset = centre - linear.to(images) @ centre
    return affine(images, torch.cat((linear.to(images), offset[:, :, None]), dim=2), border)


def smooth_displacement(images: Tensor, sigma: float, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Two fields (N, H, W) of U(−1, 1) noise blurred by a Gaussian cut at 3σ, with symmetric borders."""
    count, _, height, width = images.shape
    noise = uniform((2, count, height, width), -1.0, 1.0, images, generator)
    down = gaussian_matrix(height, sigma, 3.0, "symmetric", images)
    across = down if height == width else gaussian_matrix(width, sigma, 3.0, "symmetric", images)
    rows, columns = down @ noise @ across.T
    return rows, columns


def zoom_crop(length: int, factor: float) -> tuple[int, int]:
    """First pixel and length of the centre part that fills `length` pixels after enlargement by `factor`."""
    kept = math.ceil(length / factor)
    return (length - kept) // 2, kept


def enlarge(crop: Tensor, factor: float, height: int, width: int) -> Tensor:
    """Enlarge a centre crop by `factor` (scipy's linear `zoom`, corners on corners) and cut it to height × width."""
    tall, wide = round(crop.shape[-2] * factor), round(crop.shape[-1] * factor)
    zoomed = F.interpolate(crop, size=(tall, wide), mode="bilinear", align_corners=True)
    top, left = (tall - height) // 2, (wide - width) // 2
    return zoomed[..., top : top + height, left : left + width]


def clipped_zoom(images: Tensor, factor: float) -> Tensor:
    """Enlarge the centre of the images by `factor` and keep their size."""
    height, width = images.shape[-2:]
    (top, tall), (left, wide) = zoom_crop(height, factor), zoom_crop(width, factor)
    return enlarge(images[..., top : top + tall, left : left + wide], factor, height, width)


def box_taps(length: int, resized: int) -> tuple[Tensor, Tensor]:
    """Sources and weights (resized, taps) of Pillow's BOX filter, which counts whole pixels and no parts of them."""
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
