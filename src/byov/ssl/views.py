"""BYOL's two views of an image (Grill et al. 2020, Appendix B), for a whole batch at once.

    views = Views(mean=data.mean, std=data.std)
    first, second = views(images, generator)

Every image has its own crop, flip, colours, order of the colour operations, blur and solarisation. All randomness is in
one tensor of uniform numbers (`views.draw`); the rest (`views.render`) is a pure function of it and the images, and
compiles as one graph: `torch.compile(views.render, fullgraph=True)`. On a GPU the matrix products follow
`torch.set_float32_matmul_precision`; "high" is exact to half a grey level and saves half the time at 224 pixels.

Crops are resized by antialiased bicubic interpolation, as in PIL and torchvision and in the public small-scale BYOL
results; the authors' own code does not antialias, which only matters if a crop is larger than the view.
Images of at most 32 pixels are not blurred (solo-learn, lightly). On larger ones the kernel is a tenth of the size: 23
at 224 pixels.
"""

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from byov.data import transforms
from byov.data.transforms import TRIES, place_crops
from byov.train.config import Fraction, Positive, Range, check

OPERATIONS = 4  # brightness, contrast, saturation, hue
UNIFORMS = 2 * TRIES + 2 + 1 + 1 + 2 * OPERATIONS + 1 + 2 + 1
_Side = Annotated[float, Range(0, 1000, above=True)]
NEVER = 2.0  # a solarisation threshold that no pixel reaches


@dataclass(frozen=True)
class View:
    """The probabilities and ranges of one view's pipeline. The defaults are BYOL's first view."""

    area: tuple[Fraction, Fraction] = (0.08, 1.0)
    aspect: tuple[_Side, _Side] = (3 / 4, 4 / 3)
    flip: Fraction = 0.5
    jitter: Fraction = 0.8
    brightness: Fraction = 0.4
    contrast: Fraction = 0.4
    saturation: Fraction = 0.2
    hue: Annotated[float, Range(0, 0.5)] = 0.1
    grayscale: Fraction = 0.2
    blur: Fraction = 1.0
    sigma: tuple[_Side, _Side] = (0.1, 2.0)
    solarize: Fraction = 0.0
    threshold: float = 0.5

    def __post_init__(self) -> None:
        check(self, "View")
        for name in ("area", "aspect", "sigma"):
            low, high = getattr(self, name)
            if not 0.0 < low <= high:
                raise ValueError(f"View.{name} is a range, its first number above 0, not {(low, high)}.")


class Parameters(NamedTuple):
    """The parameters of one view for each of N images; operations that are skipped have their neutral strength."""

    top: Tensor  # the crop, in whole pixels
    left: Tensor
    height: Tensor
    width: Tensor
    flip: Tensor  # bool
    brightness: Tensor
    contrast: Tensor
    saturation: Tensor
    hue: Tensor  # a shift as a fraction of the circle, neutral 0
    turn: Tensor  # (N, 4): the position of each of the four in the image's own order
    grayscale: Tensor  # bool
    sigma: Tensor  # neutral 0
    threshold: Tensor  # neutral NEVER


def parameters(view: View, uniforms: Tensor, height: int, width: int) -> Parameters:
    """Convert uniform numbers (N, UNIFORMS) from [0, 1) to parameters, for images of height × width pixels."""
    tries, where, flip, jitter, strength, keys, grayscale, blur, solarize = uniforms.split(
        (2 * TRIES, 2, 1, 1, OPERATIONS, OPERATIONS, 1, 2, 1), dim=1
    )
    top, left, h, w = place_crops(view.area, view.aspect, tries, where, height, width)
    jittered = jitter[:, 0] < view.jitter
    one, zero = torch.ones_like(jitter[:, 0]), torch.zeros_like(jitter[:, 0])

    def factor(column: int, most: float) -> Tensor:
        return torch.where(jittered, 1 + most * (2 * strength[:, column] - 1), one)

    return Parameters(
        top=top,
        left=left,
        height=h,
        width=w,
        flip=flip[:, 0] < view.flip,
        brightness=factor(0, view.brightness),
        contrast=factor(1, view.contrast),
        saturation=factor(2, view.saturation),
        hue=torch.where(jittered, view.hue * (2 * strength[:, 3] - 1), zero),
        turn=(keys.unsqueeze(2) > keys.unsqueeze(1)).sum(2),  # the rank of independent keys is a uniform permutation
        grayscale=grayscale[:, 0] < view.grayscale,
        sigma=torch.where(blur[:, 0] < view.blur, view.sigma[0] + blur[:, 1] * (view.sigma[1] - view.sigma[0]), zero),
        threshold=torch.where(solarize[:, 0] < view.solarize, view.threshold * one, NEVER * one),
    )


def kernel_size(size: int) -> int:
    """Return the blur's kernel size for views of `size` pixels: odd, about a tenth, 23 at 224; 0 (no blur) up to 32."""
    return 0 if size <= 32 else max(3, size // 10 // 2 * 2 + 1)


def crop(images: Tensor, p: Parameters, size: tuple[int, int]) -> Tensor:
    """Apply only the crops and flips to float images (N, C, H, W) in [0, 1]; return (N, C, *size) in [0, 1]."""
    never = torch.zeros_like(p.flip)
    rows = transforms.resize_matrix(p.top, p.height, never, images.shape[-2], size[0])
    columns = transforms.resize_matrix(p.left, p.width, p.flip, images.shape[-1], size[1])
    return transforms.along_axes(images, rows, columns).clamp(0, 1)


def apply(images: Tensor, p: Parameters, size: tuple[int, int]) -> Tensor:
    """Apply the parameters to float images (N, C, H, W) in [0, 1]; return (N, C, *size) in [0, 1]."""
    x = crop(images, p, size)
    planes = transforms.jitter(x.unbind(1), p.brightness, p.contrast, p.saturation, p.hue, p.turn)
    gray, colourless = transforms.gray(planes), p.grayscale.view(-1, 1, 1)
    x = torch.stack([torch.where(colourless, gray, plane) for plane in planes], 1)
    if kernel := kernel_size(min(size)):
        blur = [transforms.blur_matrix(p.sigma, side, kernel) for side in size]
        x = transforms.along_axes(x, *blur)
    return transforms.solarize(x, p.threshold)


@dataclass(frozen=True)
class Views:
    """BYOL's pair of pipelines; a call returns two normalised views of a batch."""

    first: View = field(default_factory=View)
    second: View = field(default_factory=lambda: View(blur=0.1, solarize=0.2))
    size: Annotated[int, Range(1, 16_384)] | None = None
    """Side of the views in pixels; None keeps the images' own."""
    mean: tuple[float, ...] | None = None
    std: tuple[Positive, ...] | None = None

    def __post_init__(self) -> None:
        check(self, "views")

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Make two views of images (N, C, H, W), uint8 or floats in [0, 1], one or three channels."""
        self.check(images)
        return self.render(images, self.draw(len(images), generator, images.device))

    def check(self, images: Tensor) -> None:
        """Raise a ValueError unless views can be made of these images."""
        if images.ndim != 4 or images.shape[1] not in (1, 3):
            raise ValueError(f"Views are made of images (N, 1 or 3, H, W), not {tuple(images.shape)}.")
        self.check_channels(images.shape[1])
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise ValueError(f"Views are made of uint8 or floating-point images, not {images.dtype}.")

    def check_channels(self, channels: int) -> None:
        """Raise a ValueError unless `mean` and `std` have one number per channel."""
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and len(values) != channels:
                raise ValueError(f"views.{name} has {len(values)} numbers for images of {channels} channels.")

    def draw(
        self, images: int, generator: torch.Generator | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Draw all random numbers of one batch: (2, images, UNIFORMS) from [0, 1), on the generator's device.

        A CPU generator gives the same views on every device; a generator on the GPU avoids the copy.
        """
        home = generator.device if generator is not None else device
        return torch.rand(2, images, UNIFORMS, generator=generator, device=home).to(device, non_blocking=True)

    def render(self, images: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        """Render the two views for these uniform numbers: no randomness, no synchronisation, one graph."""
        height, width = images.shape[-2:]
        size = (self.size, self.size) if self.size else (height, width)
        first, second = uniforms.unbind(0)
        pair = parameters(self.first, first, height, width), parameters(self.second, second, height, width)
        both = Parameters(*map(torch.cat, zip(*pair, strict=True)))  # one batch of 2N: half the kernels
        x = transforms.to_unit(images).repeat(2, 1, 1, 1)
        x = transforms.normalize(apply(x, both, size), self.mean, self.std).contiguous()
        return x[: len(images)], x[len(images) :]
