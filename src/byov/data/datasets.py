"""Image sets, in memory or as picture files, and holding out a part for model selection."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms.v2.functional import to_dtype

from byov.data.image_ops import luma
from byov.data.printable import reason

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images as uint8 (N, C, H, W), labels as int64 (N,) or None; `to(device)` moves the whole set."""

    name: str
    images: Tensor
    labels: Tensor | None = None
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or not self.images.numel():
            got = f"{self.images.dtype} {tuple(self.images.shape)}"
            raise ValueError(f"{self.name}: images are uint8 (N, C, H, W), none of them 0, not {got}.")
        if self.labels is None:
            return
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            got = f"{self.labels.dtype} {tuple(self.labels.shape)}"
            raise ValueError(f"{self.name}: labels are int64 ({len(self.images)},), one per image, not {got}.")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.class_names):
            raise ValueError(f"{self.name}: labels {low} to {high} do not fit {len(self.class_names)} class names.")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def channels(self) -> int:
        return self.images.shape[1]

    @property
    def image_size(self) -> int:
        """Return the longer side in pixels."""
        return max(self.images.shape[2:])

    @cached_property
    def digest(self) -> str:
        """Return the first 12 hex digits of the SHA-256 of shape, pixels and labels, to identify the data."""
        arrays = [part.cpu().numpy() for part in (self.images, self.labels) if part is not None]
        return _digest([repr(tuple(self.images.shape)).encode(), *(np.ascontiguousarray(a).data for a in arrays)])

    @cached_property
    def _moments(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        # exact, from counts of the 256 values, without a float copy of the set
        counts = torch.zeros(self.channels, 256, dtype=torch.int64)
        for chunk in self.images.split(4096):
            for channel, pixels in enumerate(chunk.cpu().unbind(1)):
                counts[channel] += torch.bincount(pixels.flatten(), minlength=256)
        weights = counts.double() / counts.sum(1, keepdim=True)
        values = torch.arange(256, dtype=torch.float64) / 255
        mean = weights @ values
        std = (weights @ values.square() - mean.square()).clamp(min=0).sqrt()
        return tuple(mean.tolist()), tuple(s if s > 1e-6 else 1.0 for s in std.tolist())

    @property
    def mean(self) -> tuple[float, ...]:
        """Return the per-channel mean of the pixels in [0, 1]."""
        return self._moments[0]

    @property
    def std(self) -> tuple[float, ...]:
        """Return the per-channel standard deviation of the pixels in [0, 1]; 1 for a constant channel."""
        return self._moments[1]

    def to(self, device: torch.device | str) -> "ImageSet":
        labels = None if self.labels is None else self.labels.to(device)
        return replace(self, images=self.images.to(device), labels=labels)

    def subset(self, indices: Tensor) -> Self:
        indices = indices.to(self.images.device)
        labels = None if self.labels is None else self.labels[indices]
        return replace(self, images=self.images[indices], labels=labels)

    def resized(self, image_size: int | None = None, channels: int | None = None) -> "ImageSet":
        """Return square images of `image_size` pixels (antialiased bilinear), with 1 or 3 channels; None keeps each."""
        images = self.images
        if channels is not None and channels != self.channels:
            if {channels, self.channels} != {1, 3}:
                raise ValueError(f"{self.name} has {self.channels} channels, which cannot become {channels}.")
            if channels == 3:
                images = images.expand(-1, 3, -1, -1)
            else:
                images = torch.cat([luma(chunk).round().byte() for chunk in images.split(4096)])
        if image_size is not None and images.shape[2:] != (image_size, image_size):
            size = (image_size, image_size)
            check_memory(len(images) * images.shape[1] * image_size**2, f"{self.name} with {image_size} pixels a side")
            resized = torch.empty(*images.shape[:2], *size, dtype=torch.uint8, device=images.device)
            chunk = min(4096, max(1, 2**28 // resized[0].numel()))
            for part, place in zip(images.split(chunk), resized.split(chunk), strict=True):
                pixels = F.interpolate(part.float(), size, mode="bilinear", antialias=True)
                place.copy_(pixels.round_().clamp_(0, 255))
            images = resized
        return replace(self, images=images.contiguous())


@dataclass(frozen=True, eq=False)
class FolderSet(Dataset):
    """Images on disk; item i is a uint8 tensor (channels, image_size, image_size), or the reason it cannot be read.

    The shorter side is scaled to image_size / crop pixels and the central square is cut out. For BYOL's views,
    use images a little larger than the view (256 for 224). Mean and std are ImageNet's: computing the set's own would
    cost an epoch of reading.
    """

    name: str
    paths: tuple[str, ...]
    labels: Tensor | None = None
    class_names: tuple[str, ...] = ()
    image_size: int = 224
    channels: int = 3
    crop: float = 1.0

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor | str:
        path, mode = self.paths[index], "L" if self.channels == 1 else "RGB"
        try:
            image = read_picture(path, self.image_size, mode, self.crop)
        except Exception as error:  # decoders raise anything; one broken file must not end a run
            return reason(error).replace(f" {path!r}", "")
        array = np.array(image).reshape(self.image_size, self.image_size, self.channels)
        return torch.from_numpy(array).permute(2, 0, 1).contiguous()

    @cached_property
    def digest(self) -> str:
        """Return the first 12 hex digits of a SHA-256 over every file's folder, name and size, not its contents."""
        return _digest(os.fsencode(os.path.join(*Path(p).parts[-2:])) + f" {_size(p)}\n".encode() for p in self.paths)

    @property
    def mean(self) -> tuple[float, ...]:
        return IMAGENET_MEAN if self.channels == 3 else (sum(IMAGENET_MEAN) / 3,)

    @property
    def std(self) -> tuple[float, ...]:
        return IMAGENET_STD if self.channels == 3 else (sum(IMAGENET_STD) / 3,)

    def subset(self, indices: Tensor) -> Self:
        labels = None if self.labels is None else self.labels[indices]
        return replace(self, paths=tuple(self.paths[i] for i in indices.tolist()), labels=labels)

    def resized(self, image_size: int) -> "FolderSet":
        return replace(self, image_size=image_size)


MAX_ASPECT = 8
"""The largest aspect ratio: longer pictures are cropped to their middle before any resizing."""


def read_picture(path: str, image_size: int, mode: str, crop: float = 1.0) -> Image.Image:
    """Decode a file in `mode`, "RGB" or "L", scale the shorter side to image_size / crop, cut out the centre.

    As in torchvision's ImageFolder, this is the first frame, without alpha and with the orientation stored in the file.
    Values of more than eight bits are scaled by type: 16 bits to their upper eight, floating-point values from [0, 1].
    Pillow's limit on the number of pixels applies. Errors of the decoder are raised unchanged.
    """
    side = round(image_size / crop)
    with Image.open(path) as file:
        file.draft(mode, (side, side))  # a JPEG can be decoded at a reduced size
        image = _eight_bits(file).convert(mode)
    longest = MAX_ASPECT * min(image.size)
    if max(image.size) > longest:
        image = _centre(image, min(image.width, longest), min(image.height, longest))
    scale = side / min(image.size)
    width, height = (max(side, round(scale * length)) for length in image.size)
    return _centre(image.resize((width, height), Image.Resampling.BICUBIC), image_size, image_size)


def _centre(image: Image.Image, width: int, height: int) -> Image.Image:
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def _eight_bits(file: Image.Image) -> Image.Image:
    """Scale 16-bit and float pictures, which Pillow would clip at 255, to eight bits; return others unchanged."""
    if file.mode.startswith("I;16") or (file.mode == "I" and file.format in ("PNG", "PPM")):
        bits = getattr(file, "tag_v2", {}).get(258, (16,))[0]  # a TIFF may hold 12
        values = torch.from_numpy(np.asarray(file).astype(np.int32) << (31 - bits))
    elif file.mode == "F":
        values = torch.from_numpy(np.array(file))
        low, high = (float(value) for value in values.aminmax())
        if not (low >= 0.0 and high <= 1.0):  # written so that NaN fails too
            raise ValueError(f"floating-point values from {low:.4g} to {high:.4g}, where 0 to 1 are expected")
    elif file.mode == "I":
        raise ValueError("whole numbers of 32 bits, whose scale is not known")
    else:
        return file
    return Image.fromarray(to_dtype(values, torch.uint8, scale=True).numpy())


def _digest(parts: Iterable[bytes | memoryview]) -> str:
    content = hashlib.sha256()
    for part in parts:
        content.update(part)
    return content.hexdigest()[:12]


def _size(path: str) -> int:
    """Return a file's size in bytes, or −1 if it does not exist, as for a broken link."""
    return os.path.getsize(path) if os.path.exists(path) else -1


def free_memory() -> int | None:
    """Return the available memory in bytes, including reclaimable caches; None if unknown."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def check_memory(size: int, what: str, advice: str = "") -> None:
    """Raise if `size` bytes exceed the available memory; do nothing where that is unknown."""
    if (free := free_memory()) is not None and size > free:
        gib = f"{size / 2**30:,.0f} GiB in memory, where {free / 2**30:,.0f} are free"
        raise ValueError(f"{what} would take {gib}{advice}.")


AnySet = TypeVar("AnySet", bound=ImageSet | FolderSet)


def holdout(data: AnySet, fraction: float = 0.1, seed: int = 0) -> tuple[AnySet, AnySet]:
    """Split a set into (kept, held out) for model selection: a pure function of the labels, the fraction and the seed.

    The fraction is taken from each class, rounded; both parts keep the order of the set.
    """
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"The fraction to hold out lies between 0 and 1, not at {fraction}.")
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    labels = torch.zeros(len(data), dtype=torch.int64) if data.labels is None else data.labels.cpu()
    held = torch.zeros(len(data), dtype=torch.bool)
    for label in labels.unique():
        members = order[labels[order] == label]
        held[members[: round(fraction * len(members))]] = True
    if not held.any() or held.all():
        raise ValueError(f"{len(data)} images are too few to hold out a fraction of {fraction} of each class.")
    return tuple(data.subset(part.nonzero()[:, 0]) for part in (~held, held))  # type: ignore[return-value]
