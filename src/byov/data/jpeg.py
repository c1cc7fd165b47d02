"""JPEG compression and decompression of a batch of images, as libjpeg does it, without the lossless entropy coding.

RGB → YCbCr, 4:2:0 chroma, 8×8 DCT, quantisation by the Independent JPEG Group's tables scaled by the quality, inverse
DCT, triangle upsampling of the chroma, RGB; with libjpeg's rounding to eight bits after each stage.
"""

import torch
from torch import Tensor

from byov.data.filters import border_index, pad

# Annex K of the JPEG standard, in raster order.
_LUMA = (
    *(16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55),
    *(14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80, 62),
    *(18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92),
    *(49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMA = (
    *(17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99),
    *(24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99, 99, 99, 99, 99),
    *(99,) * 32,
)
_TO_YCC = ((0.299, 0.587, 0.114), (-0.168735892, -0.331264108, 0.5), (0.5, -0.418687589, -0.081312411))
_TO_RGB = ((1.0, 0.0, 1.402), (1.0, -0.344136286, -0.714136286), (1.0, 1.772, 0.0))


def quantisation_table(table: tuple[int, ...], quality: int) -> Tensor:
    """An Annex K table at a quality from 1 to 100, by the Independent JPEG Group's rule."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    return ((torch.tensor(table) * scale + 50) // 100).clamp(1, 255)


def dct_matrix() -> Tensor:
    """√8 times the orthonormal DCT of eight values, in double precision; frequencies 0 and 4 have entries ±1."""
    k = torch.arange(8, dtype=torch.float64)
    basis = 2**0.5 * torch.cos((2 * k + 1) * k[:, None] * torch.pi / 16)
    basis[0] = 1.0
    return basis


def _continue(planes: Tensor, height: int, width: int) -> Tensor:
    """Continue planes to height × width with their last row and column."""
    device = planes.device
    rows = border_index(torch.arange(height, device=device), planes.shape[-2], "edge")
    columns = border_index(torch.arange(width, device=device), planes.shape[-1], "edge")
    return planes.index_select(-2, rows).index_select(-1, columns)


def _up(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def _rounded(values: Tensor) -> Tensor:
    """Rounded in place with ties up, which is what adding a half and shifting does."""
    return values.add_(0.5).floor_()


def _code_blocks(planes: Tensor, table: Tensor) -> Tensor:
    """DCT, quantise, dequantise and invert planes (N, C, H, W) of 8-bit values."""
    count, channels, height, width = planes.shape
    tall, wide = _up(height, 8), _up(width, 8)
    if (tall, wide) != (height, width):
        planes = _continue(planes, tall, wide)
    blocks = planes.reshape(count, channels, tall // 8, 8, wide // 8, 8).transpose(3, 4).reshape(-1, 8, 8)
    dct, steps = dct_matrix().to(planes), table.view(8, 8).T.to(planes)
    # libjpeg keeps two bits between its passes, over rows then columns and back, and knows coefficients to 1/8. It
    # rounds ties of the levels away from zero, and they are common where the step is even: without this, levels differ.
    halfway = _rounded((blocks - 128.0) @ (4.0 * dct.T))
    eighths = _rounded(halfway.transpose(1, 2) @ (0.25 * dct.T))
    levels = ((eighths.abs() + 4.0 * steps) / (8.0 * steps)).floor_().copysign_(eighths)
    halfway = _rounded((levels * steps) @ (4.0 * dct))
    blocks = _rounded(halfway.transpose(1, 2) @ (dct / 32.0)).add_(128.0).clamp_(0.0, 255.0)
    coded = (
        blocks.view(count, channels, tall // 8, wide // 8, 8, 8).transpose(3, 4).reshape(count, channels, tall, wide)
    )
    return coded[..., :height, :width]


def _halve(planes: Tensor) -> Tensor:
    """Mean of 2×2 pixels; libjpeg breaks ties down and up in alternate columns."""
    height, width = planes.shape[-2:]
    if height % 2 or width % 16:
        planes = _continue(planes, _up(height, 2), _up(width, 16))
    rows = planes[..., 0::2, :] + planes[..., 1::2, :]
    total = rows[..., 0::2] + rows[..., 1::2]
    ties = torch.tensor([1.0, 2.0], dtype=planes.dtype, device=planes.device).repeat(total.shape[-1] // 2)
    return ((total + ties) * 0.25).floor_()


def _double(planes: Tensor) -> Tensor:
    """libjpeg's "fancy" upsampling: weights 3/4 and 1/4 along both axes."""
    padded = pad(planes, 1, 1, "edge")
    middle = 3.0 * padded[..., 1:-1, :]
    rows = torch.stack((middle + padded[..., :-2, :], middle + padded[..., 2:, :]), dim=-2).flatten(-3, -2)
    middle = 3.0 * rows[..., 1:-1]
    left = (middle + rows[..., :-2] + 8.0) * 0.0625
    right = (middle + rows[..., 2:] + 7.0) * 0.0625
    return torch.stack((left, right), dim=-1).flatten(-2).floor_()


def _mix(planes: Tensor, matrix: tuple[tuple[float, ...], ...]) -> Tensor:
    """Mix the channels by a matrix rounded to 1/65536, as libjpeg does: single precision then holds the sums."""
    weights = torch.tensor(matrix, dtype=torch.float64).mul_(65536.0).round_().div_(65536.0).to(planes)
    return (weights @ planes.flatten(2)).view(planes.shape)


def jpeg(images: Tensor, quality: int) -> Tensor:
    """The images after a round trip through JPEG at `quality` (1–100); values in [0, 1] before and after."""
    levels = (images * 255.0).round_()
    luma_table = quantisation_table(_LUMA, quality)
    if images.shape[1] == 1:
        return _code_blocks(levels, luma_table) / 255.0
    height, width = images.shape[-2:]
    ycc = _mix(levels, _TO_YCC)
    ycc[:, 1:] -= (
        1 / 65536
    )  # libjpeg rounds ties up in luma and down in chroma, and for grey-blue pixels they are common
    ycc = _rounded(ycc)
    chroma = _code_blocks(_halve(ycc[:, 1:] + 128.0), quantisation_table(_CHROMA, quality))
    chroma = chroma[..., : (height + 1) // 2, : (width + 1) // 2]
    coded = torch.cat(
        (_code_blocks(ycc[:, :1], luma_table), _double(chroma)[..., :height, :width] - 128.0),
        dim=1,
    )
    return _rounded(_mix(coded, _TO_RGB)).clamp_(0.0, 255.0) / 255.0
