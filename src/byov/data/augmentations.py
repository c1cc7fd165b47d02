"""BYOV's out-of-distribution augmentations, batched, at five severities.

The paper names Gaussian noise, shearing and salt-and-pepper noise among "various augmentations" and gives no strengths:
the list and the numbers here are ours. Lengths are in units of the image's shorter side, so that they hold at any size.
Directions and signs are drawn for each image; the strength depends only on the severity.
"""

import torch
from torch import Tensor

from byov.data import image_ops, transforms
from byov.data.corruptions import noise
from byov.data.shift import Shift, find, integers, shift, signs, smooth_noise, uniform

gaussian_noise = shift(byov=(0.04, 0.08, 0.12, 0.18, 0.26))(noise.gaussian_noise.apply)


@shift(byov=(0.01, 0.03, 0.06, 0.12, 0.2))
def salt_and_pepper(images: Tensor, generator: torch.Generator | None, amount: float) -> Tensor:
    """Turn whole pixels black or white, each with probability amount/2."""
    count, _, height, width = images.shape
    return noise.salt_and_pepper(images, uniform((count, 1, height, width), 0.0, 1.0, images, generator), amount)


@shift(byov=(0.1, 0.2, 0.3, 0.4, 0.5))
def shear(images: Tensor, generator: torch.Generator | None, slope: float) -> Tensor:
    """Shear horizontally by ± slope about the centre, black outside."""
    linear = torch.eye(2, dtype=images.dtype, device=images.device).repeat(images.shape[0], 1, 1)
    linear[:, 0, 1] = slope * signs((images.shape[0],), images, generator)
    return about_centre(images, linear)


@shift(byov=(5, 10, 20, 30, 45))
def rotation(images: Tensor, generator: torch.Generator | None, degrees: float) -> Tensor:
    """Rotate by ± degrees about the centre, black outside."""
    angles = torch.deg2rad(degrees * signs((images.shape[0],), images, generator))
    cos, sin = torch.cos(angles), torch.sin(angles)
    return about_centre(images, torch.stack((cos, -sin, sin, cos), dim=1).view(-1, 2, 2))


def about_centre(images: Tensor, linear: Tensor) -> Tensor:
    """Warp about the image's centre by linear maps (N, 2, 2) from output to input; black outside."""
    height, width = images.shape[-2:]
    centre = torch.tensor([(width - 1) / 2, (height - 1) / 2], dtype=images.dtype, device=images.device)
    offset = centre - linear @ centre
    return image_ops.affine(images, torch.cat((linear, offset[:, :, None]), dim=2), "black")


@shift(byov=(0.05, 0.1, 0.15, 0.2, 0.3))
def translation(images: Tensor, generator: torch.Generator | None, distance: float) -> Tensor:
    """Move by `distance` sides in a uniformly random direction, black outside."""
    angles = uniform((images.shape[0],), 0.0, 2.0 * torch.pi, images, generator)
    pixels = distance * min(images.shape[-2:])
    matrices = torch.eye(2, 3, dtype=images.dtype, device=images.device).repeat(images.shape[0], 1, 1)
    matrices[:, :, 2] = pixels * torch.stack((torch.cos(angles), torch.sin(angles)), dim=1)
    return image_ops.affine(images, matrices, "black")


@shift(byov=(0.015, 0.025, 0.035, 0.05, 0.07))
def blur(images: Tensor, generator: torch.Generator | None, sigma: float) -> Tensor:
    """Blur with a Gaussian whose standard deviation is σ sides."""
    return image_ops.gaussian_blur(images, sigma * min(images.shape[-2:]))


@shift(byov=(0.1, 0.2, 0.3, 0.4, 0.5))
def brightness(images: Tensor, generator: torch.Generator | None, amount: float) -> Tensor:
    """Return x ± amount."""
    return images + amount * signs((images.shape[0], 1, 1, 1), images, generator)


@shift(byov=(0.7, 0.5, 0.35, 0.2, 0.1))
def contrast(images: Tensor, generator: torch.Generator | None, factor: float) -> Tensor:
    """Return m + factor·(x − m), with m the mean grey of the image."""
    return torch.lerp(image_ops.luma(images).mean(dim=(1, 2, 3), keepdim=True), images, factor)


@shift(rgb_only=True, byov=(0.75, 0.5, 0.3, 0.15, 0.0))
def saturation(images: Tensor, generator: torch.Generator | None, factor: float) -> Tensor:
    """Return g + factor·(x − g), with g the grey of the pixel."""
    return torch.lerp(image_ops.luma(images), images, factor)


@shift(rgb_only=True, byov=(0.05, 0.1, 0.2, 0.3, 0.5))
def hue(images: Tensor, generator: torch.Generator | None, turns: float) -> Tensor:
    """Rotate the hue by ± this fraction of the colour circle."""
    turned = transforms.adjust_hue(images.unbind(1), turns * signs((images.shape[0],), images, generator))
    return torch.stack(turned, dim=1)


@shift(byov=(0.9, 0.75, 0.6, 0.45, 0.3))
def solarize(images: Tensor, generator: torch.Generator | None, threshold: float) -> Tensor:
    """Return 1 − x where x ≥ threshold."""
    return torch.where(images >= threshold, 1.0 - images, images)


@shift(byov=(5, 4, 3, 2, 1))
def posterize(images: Tensor, generator: torch.Generator | None, bits: int) -> Tensor:
    """Keep only the highest `bits` of the eight bits of each value."""
    step = 2 ** (8 - bits)
    return (images * 255.0).round_().div_(step).floor_().mul_(step / 255.0)


@shift(byov=(0.005, 0.01, 0.015, 0.02, 0.03))
def elastic(images: Tensor, generator: torch.Generator | None, distance: float) -> Tensor:
    """Displace smoothly and randomly, with a standard deviation of `distance` sides along each axis.

    The field is white noise blurred by σ = 0.06 sides; U(−1, 1) noise blurred so has a standard deviation of
    1/(√3 · 2√π σ).
    """
    side = min(images.shape[-2:])
    sigma = max(0.06 * side, 1.0)
    amplitude = distance * side * (3.0**0.5 * 2.0 * torch.pi**0.5 * sigma)
    return image_ops.displace(images, amplitude * smooth_noise(images, sigma, generator))


@shift(byov=(0.2, 0.3, 0.4, 0.5, 0.6))
def cutout(images: Tensor, generator: torch.Generator | None, length: float) -> Tensor:
    """Put a grey square (0.5) of `length` sides at a random place inside the image."""
    count, _, height, width = images.shape
    square = max(1, round(length * min(height, width)))
    top = integers((count, 1, 1), 0, height - square + 1, images, generator)
    left = integers((count, 1, 1), 0, width - square + 1, images, generator)
    rows = torch.arange(height, device=images.device)[:, None]
    columns = torch.arange(width, device=images.device)
    inside = (rows >= top) & (rows < top + square) & (columns >= left) & (columns < left + square)
    return images.masked_fill(inside[:, None], 0.5)


@shift(byov=(50, 30, 20, 10, 5))
def jpeg(images: Tensor, generator: torch.Generator | None, quality: int) -> Tensor:
    """Compress as JPEG at the given quality."""
    return image_ops.jpeg(images, quality)


AUGMENTATIONS: dict[str, Shift] = {made.name: made for made in list(vars().values()) if isinstance(made, Shift)}
"""The augmentations above by name."""


def augment(images: Tensor, name: str, severity: int = 1, generator: torch.Generator | None = None) -> Tensor:
    """Apply the augmentation `name` at a severity from 1 to 5; the contract is that of `corrupt`."""
    return find(AUGMENTATIONS, name, "augmentation")(images, severity, generator)
