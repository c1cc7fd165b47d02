"""Plasma fractals by the diamond-square algorithm: the clouds of ImageNet-C's fog."""

import torch
from torch import Tensor

from byov.data.shift import uniform


def plasma(count: int, side: int, decay: float, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """`count` periodic height maps (count, S, S) from 0 to 1, S the power of two that is at least `side`.

    Each round halves the step: the centre of every square, then of every diamond, becomes the mean of its four corners
    plus w·U(−w, w), and w, at first 100, is divided by `decay`.
    """
    size = max(2, 1 << (side - 1).bit_length())
    heights = torch.zeros(count, size, size, dtype=like.dtype, device=like.device)
    step, wobble = size, 100.0
    while step >= 2:
        half = step // 2

        def wobbled(total: Tensor, amplitude: float = wobble**2) -> Tensor:
            return total.mul_(0.25).add_(uniform(total.shape, -amplitude, amplitude, like, generator))

        corners = heights[:, ::step, ::step]
        above = corners + corners.roll(-1, dims=1)
        centres = wobbled(above + above.roll(-1, dims=2))
        heights[:, half::step, half::step] = centres
        heights[:, ::step, half::step] = wobbled(centres + centres.roll(1, dims=1) + corners + corners.roll(-1, dims=2))
        heights[:, half::step, ::step] = wobbled(centres + centres.roll(1, dims=2) + above)
        step, wobble = half, wobble / decay
    lowest, highest = heights.amin(dim=(1, 2), keepdim=True), heights.amax(dim=(1, 2), keepdim=True)
    return (heights - lowest) / (highest - lowest)
