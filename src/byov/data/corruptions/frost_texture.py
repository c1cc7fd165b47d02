"""A generated frost texture, in place of the photographs from which the original cuts its frost.

Ice needles grow along a few directions out of scattered seeds, over clouds of all sizes. Colour, spread within a crop
and spread between crops are those of the five photographs that the original draws from with equal probability.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from byov.data import filters
from byov.data.shift import integers, normal, uniform

# Mean colour over the crops of each photograph, and the standard deviation of its channels within a crop.
_COLOURS = (
    (0.305, 0.581, 0.645),
    (0.775, 0.792, 0.828),
    (0.775, 0.792, 0.828),
    (0.566, 0.624, 0.674),
    (0.395, 0.440, 0.486),
)
_SPREADS = (
    (0.094, 0.056, 0.053),
    (0.076, 0.079, 0.082),
    (0.076, 0.079, 0.082),
    (0.102, 0.102, 0.107),
    (0.141, 0.140, 0.137),
)
_BETWEEN = 0.35  # standard deviation of a crop's mean, in units of the spread within it


def frost_texture(
    count: int, height: int, width: int, like: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """`count` textures (count, 3, height, width), about in [0, 1], in the dtype and on the device of `like`."""
    pattern = 0.6 * _standardised(needles(count, height, width, like, generator))
    pattern += 0.8 * _standardised(clouds(count, height, width, like, generator))
    pattern = _standardised(pattern) + _BETWEEN * normal((count, 1, 1, 1), like, generator)
    photograph = integers((count,), 0, len(_COLOURS), like, generator)
    colours, spreads = (torch.tensor(rows, dtype=like.dtype, device=like.device) for rows in (_COLOURS, _SPREADS))
    return colours[photograph][:, :, None, None] + spreads[photograph][:, :, None, None] * pattern


def needles(count: int, height: int, width: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Bright seeds drawn out along three directions for each image; where needles cross, the brighter one is on top."""
    length = max(1, min(height, width) // 20)
    directions = 3
    margin = 2 * length  # needles grow into the image from outside
    canvas = (directions * count, 1, height + 2 * margin, width + 2 * margin)
    seeds = normal(canvas, like, generator).sub_(1.0).clamp_(min=0.0)
    angles = uniform((directions * count,), 0.0, 360.0, like, generator)
    drawn_out = filters.motion_blur(seeds, length, float(length), angles)
    drawn_out = drawn_out[..., margin : margin + height, margin : margin + width]
    return drawn_out.reshape(directions, count, 1, height, width).amax(dim=0)


def clouds(count: int, height: int, width: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Noise at every octave, from single pixels to half the image, that grows with the cell's side to the power 0.4."""
    total = normal((count, 1, height, width), like, generator)
    cell = 2
    while cell <= min(height, width) // 2:
        grid = normal((count, 1, -(-height // cell) + 1, -(-width // cell) + 1), like, generator)
        layer = F.interpolate(grid, size=(height, width), mode="bilinear", align_corners=True)
        total.add_(layer, alpha=cell**0.4)
        cell *= 2
    return total


def _standardised(pattern: Tensor) -> Tensor:
    """Mean 0 and standard deviation 1 over each image."""
    centred = pattern - pattern.mean(dim=(1, 2, 3), keepdim=True)
    return centred / centred.square().mean(dim=(1, 2, 3), keepdim=True).sqrt().clamp(min=1e-6)
