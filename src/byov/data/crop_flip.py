"""The supervised augmentation of CIFAR: pad by four pixels, crop back at random, flip half of the images."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from byov.data import transforms


@dataclass(frozen=True)
class CropFlip:
    """A shift of up to `padding` pixels (zeros come in) and a flip, drawn for each image; then normalisation."""

    padding: int = 4
    flip: float = 0.5
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.padding < 0 or not 0.0 <= self.flip <= 1.0:
            raise ValueError(f"CropFlip takes a padding from 0 and a probability, not {self.padding} and {self.flip}.")

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Augmented, normalised images (N, C, H, W) from uint8 or floats in [0, 1]."""
        return self.render(images, self.draw(len(images), generator, images.device))

    def draw(
        self, images: int, generator: torch.Generator | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """All the chance of one batch: (images, 3) numbers from [0, 1), drawn where the generator lives."""
        home = generator.device if generator is not None else device
        return torch.rand(images, 3, generator=generator, device=home).to(device, non_blocking=True)

    def render(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """The images that these uniforms stand for: a pure function that compiles as one graph."""
        height, width = images.shape[-2:]
        padded = F.pad(images, (self.padding,) * 4)
        top, left = (uniforms[:, :2] * (2 * self.padding + 1)).long().unbind(1)
        rows = torch.arange(height, device=images.device) + top.unsqueeze(1)
        columns = torch.arange(width, device=images.device).expand(len(images), -1)
        columns = torch.where(uniforms[:, 2:] < self.flip, width - 1 - columns, columns) + left.unsqueeze(1)
        batch = torch.arange(len(images), device=images.device).view(-1, 1, 1, 1)
        channel = torch.arange(images.shape[1], device=images.device).view(1, -1, 1, 1)
        shifted = padded[batch, channel, rows[:, None, :, None], columns[:, None, None, :]]
        return transforms.normalize(transforms.to_unit(shifted), self.mean, self.std)
