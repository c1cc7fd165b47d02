"""A labelled or unlabelled set of images that fits in memory, and a part of it held out for choosing."""

import dataclasses
import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class Labelled(Protocol):
    """What `holdout` asks of a set: labels (or None), a length, and a subset by indices."""

    @property
    def labels(self) -> Tensor | None: ...

    def __len__(self) -> int: ...

    def subset(self, indices: Tensor) -> Self: ...


D = TypeVar("D", bound=Labelled)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images as uint8 (N, C, H, W), labels as int64 (N,) or None; `to(device)` moves the whole set."""

    name: str
    images: Tensor
    labels: Tensor | None = None
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or not len(self.images):
            got = f"{self.images.dtype} {tuple(self.images.shape)}"
            raise ValueError(f"{self.name}: images are uint8 (N, C, H, W) with N > 0, not {got}.")
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
        """The longer side in pixels."""
        return max(self.images.shape[2:])

    @cached_property
    def digest(self) -> str:
        """The first 12 hex digits of the SHA-256 of shape, pixels and labels: which data a result was made on."""
        content = hashlib.sha256(repr(tuple(self.images.shape)).encode())
        content.update(np.ascontiguousarray(self.images.cpu().numpy()).data)
        if self.labels is not None:
            content.update(self.labels.cpu().numpy().data)
        return content.hexdigest()[:12]

    @cached_property
    def _moments(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        # exact, from counts of the 256 values: no float copy of the set
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
        """Per-channel mean of the pixels in [0, 1]."""
        return self._moments[0]

    @property
    def std(self) -> tuple[float, ...]:
        """Per-channel standard deviation of the pixels in [0, 1]; 1 for a constant channel."""
        return self._moments[1]

    def to(self, device: torch.device | str) -> "ImageSet":
        labels = None if self.labels is None else self.labels.to(device)
        return dataclasses.replace(self, images=self.images.to(device), labels=labels)

    def subset(self, indices: Tensor) -> "ImageSet":
        indices = indices.to(self.images.device)
        labels = None if self.labels is None else self.labels[indices]
        return dataclasses.replace(self, images=self.images[indices], labels=labels)

    def resized(self, image_size: int | None = None, channels: int | None = None) -> "ImageSet":
        """Square images of `image_size` pixels (antialiased bilinear) with 1 or 3 channels; None keeps what is."""
        images = self.images
        if channels is not None and channels != self.channels:
            if {channels, self.channels} != {1, 3}:
                raise ValueError(f"{self.name} has {self.channels} channels, which cannot become {channels}.")
            if channels == 3:
                images = images.expand(-1, 3, -1, -1)
            else:
                weights = torch.tensor([0.299, 0.587, 0.114], device=images.device).view(1, 3, 1, 1)
                images = torch.cat([(c * weights).sum(1, keepdim=True).round().byte() for c in images.split(4096)])
        if image_size is not None and images.shape[2:] != (image_size, image_size):
            size = [image_size, image_size]
            resize = [F.interpolate(c.float(), size, mode="bilinear", antialias=True) for c in images.split(4096)]
            images = torch.cat([c.round().clamp(0, 255).byte() for c in resize])
        return dataclasses.replace(self, images=images.contiguous())


def holdout(data: D, fraction: float = 0.1, seed: int = 0) -> tuple[D, D]:
    """Split a set into (kept, held out) for model selection: a pure function of the labels, the fraction and the seed.

    Each class gives its share, rounded; both parts keep the order of the set.
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
    return data.subset((~held).nonzero()[:, 0]), data.subset(held.nonzero()[:, 0])
