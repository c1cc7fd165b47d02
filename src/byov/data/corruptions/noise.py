"""The noises: Gaussian, shot and impulse."""

import torch
from torch import Tensor

from byov.data.shift import poisson, shift, uniform
from byov.posterior.random import normal


@shift(imagenet=(0.08, 0.12, 0.18, 0.26, 0.38), cifar=(0.04, 0.06, 0.08, 0.09, 0.10))
def gaussian_noise(images: Tensor, generator: torch.Generator | None, sigma: float) -> Tensor:
    """Return x + σε, ε ~ N(0, 1): noise in low light."""
    return normal(images.shape, images, generator).mul_(sigma).add_(images)


@shift(imagenet=(60, 25, 12, 5, 3), cifar=(500, 250, 100, 75, 50))
def shot_noise(images: Tensor, generator: torch.Generator | None, photons: float) -> Tensor:
    """Return Poisson(λx)/λ: light is counted in λ photons at full brightness."""
    return poisson(images * photons, generator) / photons


@shift(imagenet=(0.03, 0.06, 0.09, 0.17, 0.27), cifar=(0.01, 0.02, 0.03, 0.05, 0.07))
def impulse_noise(images: Tensor, generator: torch.Generator | None, amount: float) -> Tensor:
    """Set each channel of each pixel to 0 or 1, each with probability amount/2: bit errors."""
    return salt_and_pepper(images, uniform(images.shape, 0.0, 1.0, images, generator), amount)


def salt_and_pepper(images: Tensor, chance: Tensor, amount: float) -> Tensor:
    """Return 0 where chance < amount/2, 1 where chance ≥ 1 − amount/2, the image elsewhere."""
    return images.masked_fill(chance < amount / 2, 0.0).masked_fill(chance >= 1.0 - amount / 2, 1.0)
