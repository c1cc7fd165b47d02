"""The weather corruptions: snow, frost, fog and brightness."""

import torch
import torch.nn.functional as F
from torch import Tensor

from byov.data import image_ops
from byov.data.image_ops import enlarge, luma, zoom_crop
from byov.data.shift import integers, shift, uniform
from byov.posterior.random import normal


@shift(
    imagenet=(
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    cifar=(
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
)
def snow(
    images: Tensor,
    generator: torch.Generator | None,
    mean: float,
    std: float,
    zoom: float,
    threshold: float,
    radius: int,
    sigma: float,
    keep: float,
) -> Tensor:
    """Overlay flakes (enlarged, thresholded noise) falling at an angle on the image, whitened by 1 − keep."""
    count, _, height, width = images.shape
    # The original zooms into the centre of the noise; only the centre is drawn here.
    crop = zoom_crop(height, zoom)[1], zoom_crop(width, zoom)[1]
    flakes = normal((count, 1, *crop), images, generator).mul_(std).add_(mean)
    flakes = enlarge(flakes, zoom, height, width)
    flakes = flakes.masked_fill(flakes < threshold, 0.0).clamp_(0.0, 1.0)
    angles = uniform((count,), -135.0, -45.0, images, generator)
    layer = image_ops.motion_blur(flakes, radius, sigma, angles).mul_(255.0).round_().div_(255.0)
    whitened = torch.maximum(images, luma(images) * 1.5 + 0.5)
    return torch.lerp(whitened, images, keep) + (layer + layer.flip(-2, -1))


@shift(
    imagenet=((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    cifar=((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
)
def frost(images: Tensor, generator: torch.Generator | None, keep: float, weight: float) -> Tensor:
    """Return keep·x + weight·texture: the original's weights, but a generated texture instead of its photographs."""
    count, channels, height, width = images.shape
    texture = frost_texture(count, height, width, images, generator)
    return keep * images + weight * (texture if channels == 3 else luma(texture))


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
    """Generate textures (count, 3, height, width), roughly in [0, 1], with the dtype and device of `like`.

    Ice needles grow in a few directions from scattered seeds, over clouds of all sizes. Colour, spread within a crop
    and spread between crops are those of the five photographs from which the original draws with equal probability.
    """
    pattern = 0.6 * _standardised(needles(count, height, width, like, generator))
    pattern += 0.8 * _standardised(clouds(count, height, width, like, generator))
    pattern = _standardised(pattern) + _BETWEEN * normal((count, 1, 1, 1), like, generator)
    photograph = integers((count,), 0, len(_COLOURS), like, generator)
    colours, spreads = (torch.tensor(rows, dtype=like.dtype, device=like.device) for rows in (_COLOURS, _SPREADS))
    return colours[photograph][:, :, None, None] + spreads[photograph][:, :, None, None] * pattern


def needles(count: int, height: int, width: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Stretch bright seeds along three directions for each image; where needles cross, the brighter one is on top."""
    length = max(1, min(height, width) // 20)
    directions = 3
    margin = 2 * length  # needles may enter the image from outside
    canvas = (directions * count, 1, height + 2 * margin, width + 2 * margin)
    seeds = normal(canvas, like, generator).sub_(1.0).clamp_(min=0.0)
    angles = uniform((directions * count,), 0.0, 360.0, like, generator)
    drawn_out = image_ops.motion_blur(seeds, length, float(length), angles)
    drawn_out = drawn_out[..., margin : margin + height, margin : margin + width]
    return drawn_out.reshape(directions, count, 1, height, width).amax(dim=0)


def clouds(count: int, height: int, width: int, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Sum noise over all octaves, from single pixels to half the image, weighted by the cell side to the power 0.4."""
    total = normal((count, 1, height, width), like, generator)
    cell = 2
    while cell <= min(height, width) // 2:
        grid = normal((count, 1, -(-height // cell) + 1, -(-width // cell) + 1), like, generator)
        layer = F.interpolate(grid, size=(height, width), mode="bilinear", align_corners=True)
        total.add_(layer, alpha=cell**0.4)
        cell *= 2
    return total


def _standardised(pattern: Tensor) -> Tensor:
    """Give every image mean 0 and standard deviation 1."""
    centred = pattern - pattern.mean(dim=(1, 2, 3), keepdim=True)
    return centred / centred.square().mean(dim=(1, 2, 3), keepdim=True).sqrt().clamp(min=1e-6)


@shift(
    imagenet=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    cifar=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
)
def fog(images: Tensor, generator: torch.Generator | None, density: float, decay: float) -> Tensor:
    """Return (x + density·plasma)·m/(m + density), with a plasma fractal for each image and m the image's maximum."""
    count, _, height, width = images.shape
    cloud = plasma(count, max(height, width), decay, images, generator)[:, None, :height, :width]
    highest = images.amax(dim=(1, 2, 3), keepdim=True)
    return torch.add(images, cloud, alpha=density) * (highest / (highest + density))


def plasma(count: int, side: int, decay: float, like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Generate periodic height maps (count, S, S) from 0 to 1, where S is the smallest power of two ≥ `side`.

    Each round halves the step: the centre of every square, then of every diamond, becomes the mean of its four corners
    plus w·U(−w, w), and w, initially 100, is divided by `decay`.
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


@shift(imagenet=(0.1, 0.2, 0.3, 0.4, 0.5), cifar=(0.05, 0.1, 0.15, 0.2, 0.3))
def brightness(images: Tensor, generator: torch.Generator | None, amount: float) -> Tensor:
    """Increase V of HSV, keeping hue and saturation: bright daylight. Nothing is random.

    RGB is V times a function of hue and saturation, so this scales by V'/V; black has no hue and becomes grey.
    """
    value = images.amax(dim=1, keepdim=True)
    raised = (value + amount).clamp(0.0, 1.0)
    return torch.where(value > 0, images * (raised / value.clamp(min=1e-12)), raised)
