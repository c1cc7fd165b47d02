"""The weather: snow, frost, fog and brightness."""

import torch
from torch import Tensor

from byov.data import filters
from byov.data.colour import add_value, luma
from byov.data.corruptions.frost_texture import frost_texture
from byov.data.corruptions.plasma import plasma
from byov.data.geometry import enlarge, zoom_crop
from byov.data.shift import normal, shift, uniform


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
    """Flakes (enlarged, thresholded noise) that fall at an angle, over an image that is whitened by 1 − keep."""
    count, _, height, width = images.shape
    # The original zooms into the centre of the noise; only the centre is drawn here.
    crop = zoom_crop(height, zoom)[1], zoom_crop(width, zoom)[1]
    flakes = normal((count, 1, *crop), images, generator).mul_(std).add_(mean)
    flakes = enlarge(flakes, zoom, height, width)
    flakes = flakes.masked_fill(flakes < threshold, 0.0).clamp_(0.0, 1.0)
    angles = uniform((count,), -135.0, -45.0, images, generator)
    layer = filters.motion_blur(flakes, radius, sigma, angles).mul_(255.0).round_().div_(255.0)
    whitened = torch.maximum(images, luma(images) * 1.5 + 0.5)
    return torch.lerp(whitened, images, keep) + (layer + layer.flip(-2, -1))


@shift(
    imagenet=((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    cifar=((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
)
def frost(images: Tensor, generator: torch.Generator | None, keep: float, weight: float) -> Tensor:
    """keep·x + weight·texture, with the original's weights and a generated texture in place of its photographs."""
    count, channels, height, width = images.shape
    texture = frost_texture(count, height, width, images, generator)
    return keep * images + weight * (texture if channels == 3 else luma(texture))


@shift(
    imagenet=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    cifar=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
)
def fog(images: Tensor, generator: torch.Generator | None, density: float, decay: float) -> Tensor:
    """(x + density·plasma)·m/(m + density), with a plasma fractal for each image and m its highest value."""
    count, _, height, width = images.shape
    cloud = plasma(count, max(height, width), decay, images, generator)[:, None, :height, :width]
    highest = images.amax(dim=(1, 2, 3), keepdim=True)
    return torch.add(images, cloud, alpha=density) * (highest / (highest + density))


@shift(imagenet=(0.1, 0.2, 0.3, 0.4, 0.5), cifar=(0.05, 0.1, 0.15, 0.2, 0.3))
def brightness(images: Tensor, generator: torch.Generator | None, amount: float) -> Tensor:
    """V + amount in HSV: bright daylight. Nothing is random."""
    return add_value(images, amount)
