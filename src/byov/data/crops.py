"""Random resized crops (Szegedy et al. 2015, as torchvision proposes them), for a whole batch at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from byov.data import transforms

TRIES = 10  # crops proposed before the whole image is taken, as in torchvision and TensorFlow
Range = tuple[float, float]


def place_crops(
    scale: Range, ratio: Range, tries: Tensor, where: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Take the first of ten proposals that fits, else the largest central crop of an allowed aspect.

    As torchvision's RandomResizedCrop; returns top, left, height and width. `tries` are 2·TRIES numbers from [0, 1) for
    each image, areas and then aspects, `where` two.
    """
    low, high = (math.log(bound) for bound in ratio)
    area = height * width * (scale[0] + tries[:, :TRIES] * (scale[1] - scale[0]))
    aspect = torch.exp(low + tries[:, TRIES:] * (high - low))
    w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    # a proposal is taken if it fits and none before it did
    taken = (fits & (fits.cumsum(1) == 1)).to(w.dtype)
    found = fits.any(1)
    central = min(max(width / height, ratio[0]), ratio[1])
    whole_w, whole_h = min(width, round(height * central)), min(height, round(width / central))
    w = torch.where(found, (w * taken).sum(1), torch.full_like(w[:, 0], whole_w))
    h = torch.where(found, (h * taken).sum(1), torch.full_like(h[:, 0], whole_h))
    top, left = (where[:, 0] * (height - h + 1)).floor(), (where[:, 1] * (width - w + 1)).floor()
    top = torch.where(found, top, torch.full_like(top, (height - whole_h) // 2))
    left = torch.where(found, left, torch.full_like(left, (width - whole_w) // 2))
    return top, left, h, w


@dataclass(frozen=True)
class ResizedCrop:
    """ImageNet's supervised augmentation: a random part of the image in a fixed size, a flip, normalisation.

    Resizing is antialiased bicubic, as for BYOL's views; torchvision's default is bilinear.
    """

    size: int | None = None
    """Side in pixels of what comes out; None keeps the images' own."""
    scale: Range = (0.08, 1.0)
    """Share of the image's area."""
    ratio: Range = (3 / 4, 4 / 3)
    """Width to height."""
    flip: float = 0.5
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name, (low, high), most in (("scale", self.scale, 1.0), ("ratio", self.ratio, 1000.0)):
            if not 0.0 < low <= high <= most:
                raise ValueError(f"crop.{name} is a range above 0 and up to {most:g}, not {(low, high)}.")
        if self.size is not None and self.size < 1:
            raise ValueError(f"crop.size is at least one pixel, not {self.size}.")
        if not 0.0 <= self.flip <= 1.0:
            raise ValueError(f"crop.flip is a probability, not {self.flip}.")

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Tensor:
        """Return augmented, normalised images (N, C, size, size) from uint8 or floats in [0, 1]."""
        return self.render(images, self.draw(len(images), generator, images.device))

    def draw(self, images: int, generator: Generator | None = None, device: torch.device | str | None = None) -> Tensor:
        """Draw all the chance of one batch: numbers from [0, 1), on the generator's device."""
        home = generator.device if generator is not None else device
        return torch.rand(images, 2 * TRIES + 3, generator=generator, device=home).to(device, non_blocking=True)

    def render(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """Return the images that these uniforms stand for: a pure function that compiles as one graph."""
        height, width = images.shape[-2:]
        tries, where, flip = uniforms.split((2 * TRIES, 2, 1), dim=1)
        top, left, h, w = place_crops(self.scale, self.ratio, tries, where, height, width)
        flipped = flip[:, 0] < self.flip
        rows = transforms.resize_matrix(top, h, torch.zeros_like(flipped), height, self.size or height)
        columns = transforms.resize_matrix(left, w, flipped, width, self.size or width)
        cut = transforms.along_axes(transforms.to_unit(images), rows, columns).clamp(0, 1)
        return transforms.normalize(cut, self.mean, self.std)
