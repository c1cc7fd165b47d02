"""Image operations on a batch, with a separate strength for each image.

Images are floats (N, C, H, W) in [0, 1]; strengths are tensors (N,). Nothing here is random and nothing branches on
data, so a chain of these operations compiles into one graph. To skip an operation for an image, give it the neutral
strength (factor 1, shift 0, σ 0): this is exact and needs no masks. Resizing and blurring are linear along each axis,
so they are two batched matrix products with one matrix per image; flips and crops are part of the same matrix.

The colour operations take and return the planes of a batch, `images.unbind(1)`: they mix the channels of a pixel, and
a compiler fuses this into one kernel over separate planes, but not over a stack of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

Planes = tuple[Tensor, ...]  # one or three, each (N, H, W)
GRAY = (0.2989, 0.587, 0.114)  # ITU-R 601-2, as in torchvision


def to_unit(images: Tensor) -> Tensor:
    """Scale uint8 images to floats in [0, 1]; floating-point images keep their values."""
    if images.dtype == torch.uint8:
        return images.float() / 255
    return images.float()


def along_axes(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return rows · image · columnsᵀ for every image and channel: rows is (N, H', H), columns (N, W', W).

    The products are in full float32 even under autocast, whose bfloat16 would round the weights to three digits. With
    the rows outermost, channels fold into the other axis of each product, so that no matrix is repeated per channel.
    """
    n, channels, height, width = images.shape
    with torch.autocast(images.device.type, enabled=False):
        x = torch.bmm(rows, images.transpose(1, 2).reshape(n, height, channels * width))
        x = torch.bmm(x.view(n, -1, width), columns.transpose(1, 2))
    return x.view(n, rows.shape[1], channels, columns.shape[1]).transpose(1, 2)


def _cubic(x: Tensor) -> Tensor:
    """Return Keys' cubic kernel with a = −½, as used by PIL, TensorFlow and torchvision's antialiased resize."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def resize_matrix(start: Tensor, length: Tensor, flip: Tensor, inputs: int, outputs: int) -> Tensor:
    """Return the matrices (N, outputs, inputs) that resample pixels [start, start + length) by antialiased bicubic.

    Pixels outside the crop have weight 0, as if the crop had been cut out first. `flip` (N, bool) reverses the axis.
    """
    dtype, device = length.dtype, length.device
    scale = (length / outputs).view(-1, 1, 1)
    position = torch.arange(outputs, dtype=dtype, device=device).view(1, -1, 1) + 0.5
    position = torch.where(flip.view(-1, 1, 1), outputs - position, position)
    pixel = torch.arange(inputs, dtype=dtype, device=device).view(1, 1, -1) - start.view(-1, 1, 1)
    inside = (pixel >= 0) & (pixel < length.view(-1, 1, 1))
    weights = _cubic((pixel + 0.5 - position * scale) / scale.clamp(min=1)) * inside
    return weights / weights.sum(-1, keepdim=True)


def blur_matrix(sigma: Tensor, size: int, kernel: int) -> Tensor:
    """Return the matrices (N, size, size) of a Gaussian blur with an odd `kernel` and reflected borders.

    Where σ is 0, the matrix is the identity.
    """
    reach = kernel // 2
    if kernel % 2 == 0 or reach >= size:
        raise ValueError(f"A blur's kernel is odd and at most twice the image, not {kernel} for {size} pixels.")
    # a floor, so that σ = 0 gives exp(−huge) = 0 beside a centre of exactly 1
    inverse = (-0.5 / sigma.clamp(min=1e-4) ** 2).view(-1, 1, 1)

    def weight(distance: Tensor) -> Tensor:
        return torch.exp(distance * distance * inverse) * (distance.abs() <= reach)

    i = torch.arange(size, dtype=sigma.dtype, device=sigma.device).view(1, -1, 1)
    j = torch.arange(size, dtype=sigma.dtype, device=sigma.device).view(1, 1, -1)
    # by reflection, pixel j also appears at −j and at 2(size−1)−j
    mirrored = weight(-j - i) * (j > 0) + weight(2 * (size - 1) - j - i) * (j < size - 1)
    weights = weight(j - i) + mirrored
    return weights / weights.sum(-1, keepdim=True)


def gray(planes: Planes) -> Tensor:
    """Return the luminance (N, H, W); a single plane is returned unchanged."""
    if len(planes) == 1:
        return planes[0]
    return GRAY[0] * planes[0] + GRAY[1] * planes[1] + GRAY[2] * planes[2]


def adjust_tone(planes: Planes, brightness: Tensor, saturation: Tensor) -> Planes:
    """Blend each image with black (brightness) or with its own gray (saturation; no effect on one plane).

    At most one of an image's two factors may differ from 1.
    """
    if len(planes) == 1:
        return ((brightness.view(-1, 1, 1) * planes[0]).clamp(0, 1),)
    alpha, other = (brightness * saturation).view(-1, 1, 1), (1 - saturation).view(-1, 1, 1) * gray(planes)
    return tuple((alpha * plane + other).clamp(0, 1) for plane in planes)


def adjust_contrast(planes: Planes, factor: Tensor) -> Planes:
    """Blend each image with its mean luminance."""
    alpha = factor.view(-1, 1, 1)
    other = (1 - alpha) * gray(planes).mean((1, 2), keepdim=True)
    return tuple((alpha * plane + other).clamp(0, 1) for plane in planes)


def adjust_hue(planes: Planes, shift: Tensor) -> Planes:
    """Rotate the hue by `shift` of a full circle (in [−½, ½]); value and chroma are kept, one plane is unchanged."""
    if len(planes) == 1:
        return planes
    red, green, blue = planes
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    is_red, is_green = value == red, value == green
    distance = torch.where(is_red, green - blue, torch.where(is_green, blue - red, red - green))
    sector = torch.where(is_red, 0.0, torch.where(is_green, 2.0, 4.0))
    turn = shift.view(-1, 1, 1)
    hue = sector + distance / chroma.clamp(min=1e-12) + 6 * turn
    turned = []
    for plane, corner in zip(planes, (5.0, 3.0, 1.0), strict=True):
        k = hue + corner
        k = k - 6 * torch.floor(k * (1 / 6))  # k mod 6; torch.remainder would take most of the kernel's time
        turned.append(torch.where(turn == 0, plane, value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)))
    return tuple(turned)


def jitter(
    planes: Planes, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor, turn: Tensor
) -> Planes:
    """Apply all four operations, in a separate order for each image: turn (N, 4) holds each one's position, 0 to 3.

    Four rounds of all operations, neutral when out of turn, would work, but need four means and four hues. Contrast,
    which needs a mean, and hue, the most expensive, have only two orders, so one chain covers all: gap 0, contrast,
    gap 1, hue, gap 2, contrast, gap 3. One of the contrasts is neutral; the two cheap operations act in their gap.
    """
    b, c, s, h = turn.unbind(1)
    contrast_first, brightness_first = c < h, b < s
    one = torch.ones_like(brightness)

    def gap(t: Tensor) -> Tensor:
        between = torch.where(contrast_first, 1, 2)
        return torch.where((t < c) & (t < h), 0, torch.where((t > c) & (t > h), 3, between))

    gap_b, gap_s = gap(b), gap(s)

    def tones(x: Planes, place: int) -> Planes:
        bright = torch.where(gap_b == place, brightness, one)
        rich = torch.where(gap_s == place, saturation, one)
        x = adjust_tone(x, torch.where(brightness_first, bright, one), torch.where(brightness_first, one, rich))
        return adjust_tone(x, torch.where(brightness_first, one, bright), torch.where(brightness_first, rich, one))

    x = adjust_contrast(tones(planes, 0), torch.where(contrast_first, contrast, one))
    x = adjust_hue(tones(x, 1), hue)
    x = adjust_contrast(tones(x, 2), torch.where(contrast_first, one, contrast))
    return tones(x, 3)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert x to 1 − x where x ≥ threshold (N,); a threshold above 1 leaves an image unchanged."""
    return torch.where(images >= threshold.view(-1, 1, 1, 1), 1 - images, images)


def normalize(images: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None) -> Tensor:
    """Return (x − mean) / std per channel; None skips that part."""
    if mean is not None:
        images = images - torch.tensor(mean, dtype=images.dtype, device=images.device).view(1, -1, 1, 1)
    if std is not None:
        images = images / torch.tensor(std, dtype=images.dtype, device=images.device).view(1, -1, 1, 1)
    return images


TRIES = 10  # crops proposed before the whole image is taken, as in torchvision and TensorFlow
Range = tuple[float, float]


def place_crops(
    scale: Range, ratio: Range, tries: Tensor, where: Tensor, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return top, left, height and width of a random crop for each image, as in torchvision's RandomResizedCrop.

    The crop is the first of ten proposals that fits, otherwise the largest central crop with an allowed aspect ratio
    (Szegedy et al. 2015). `tries` holds 2·TRIES numbers from [0, 1) for each image, first for areas, then for aspect
    ratios; `where` holds two, for the position.
    """
    low, high = (math.log(bound) for bound in ratio)
    area = height * width * (scale[0] + tries[:, :TRIES] * (scale[1] - scale[0]))
    aspect = torch.exp(low + tries[:, TRIES:] * (high - low))
    w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    # take a proposal if it fits and no earlier one does
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


class Augmentation:
    """A supervised augmentation: all random numbers of a batch are drawn first, then the images are rendered."""

    chances: ClassVar[int]
    """Number of random numbers per image."""

    def __call__(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return augmented, normalised images from uint8 or floats (N, C, H, W) in [0, 1]."""
        return self.render(images, self.draw(len(images), generator, images.device))

    def draw(
        self, images: int, generator: torch.Generator | None = None, device: torch.device | str | None = None
    ) -> Tensor:
        """Draw all random numbers of one batch, (images, chances) from [0, 1), on the generator's device."""
        home = generator.device if generator is not None else device
        return torch.rand(images, self.chances, generator=generator, device=home).to(device, non_blocking=True)

    def render(self, images: Tensor, uniforms: Tensor) -> Tensor:
        """Render the images for these uniform numbers: a pure function that compiles as one graph."""
        raise NotImplementedError


@dataclass(frozen=True)
class CropFlip(Augmentation):
    """CIFAR's supervised augmentation: a zero-padded shift by up to `padding` pixels, a flip, normalisation."""

    padding: int = 4
    flip: float = 0.5
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    chances: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if self.padding < 0 or not 0.0 <= self.flip <= 1.0:
            raise ValueError(f"CropFlip takes a padding from 0 and a probability, not {self.padding} and {self.flip}.")

    def render(self, images: Tensor, uniforms: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        padded = F.pad(images, (self.padding,) * 4)
        top, left = (uniforms[:, :2] * (2 * self.padding + 1)).long().unbind(1)
        rows = torch.arange(height, device=images.device) + top.unsqueeze(1)
        columns = torch.arange(width, device=images.device).expand(len(images), -1)
        columns = torch.where(uniforms[:, 2:] < self.flip, width - 1 - columns, columns) + left.unsqueeze(1)
        batch = torch.arange(len(images), device=images.device).view(-1, 1, 1, 1)
        channel = torch.arange(images.shape[1], device=images.device).view(1, -1, 1, 1)
        shifted = padded[batch, channel, rows[:, None, :, None], columns[:, None, None, :]]
        return normalize(to_unit(shifted), self.mean, self.std)


@dataclass(frozen=True)
class ResizedCrop(Augmentation):
    """ImageNet's supervised augmentation: a random crop resized to a fixed size, a flip, normalisation.

    Resizing is antialiased bicubic, as for BYOL's views; torchvision's default is bilinear.
    """

    size: int | None = None
    """Side of the output in pixels; None keeps the images' own."""
    scale: Range = (0.08, 1.0)
    """Fraction of the image's area."""
    ratio: Range = (3 / 4, 4 / 3)
    """Width to height."""
    flip: float = 0.5
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    chances: ClassVar[int] = 2 * TRIES + 3

    def __post_init__(self) -> None:
        for name, (low, high), most in (("scale", self.scale, 1.0), ("ratio", self.ratio, 1000.0)):
            if not 0.0 < low <= high <= most:
                raise ValueError(f"crop.{name} is a range above 0 and up to {most:g}, not {(low, high)}.")
        if self.size is not None and self.size < 1:
            raise ValueError(f"crop.size is at least one pixel, not {self.size}.")
        if not 0.0 <= self.flip <= 1.0:
            raise ValueError(f"crop.flip is a probability, not {self.flip}.")

    def render(self, images: Tensor, uniforms: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        tries, where, flip = uniforms.split((2 * TRIES, 2, 1), dim=1)
        top, left, h, w = place_crops(self.scale, self.ratio, tries, where, height, width)
        flipped = flip[:, 0] < self.flip
        rows = resize_matrix(top, h, torch.zeros_like(flipped), height, self.size or height)
        columns = resize_matrix(left, w, flipped, width, self.size or width)
        cut = along_axes(to_unit(images), rows, columns).clamp(0, 1)
        return normalize(cut, self.mean, self.std)
