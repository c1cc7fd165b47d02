"""A folder of images, decoded as they are needed: one sub-folder per class, or images side by side without labels."""

import dataclasses
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.datasets.folder import IMG_EXTENSIONS

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
SPLITS = {"train": ("train", "training"), "test": ("test", "val", "valid", "validation")}


@dataclass(frozen=True, eq=False)
class FolderSet(Dataset):
    """Images on disk; item i is a uint8 tensor (channels, image_size, image_size), or None if it cannot be read.

    The shorter side is scaled to image_size / crop pixels and the central square is cut out. For BYOL's views ask for
    images a little larger than the view (256 for 224). Mean and std are ImageNet's: a pass over the disk for one's own
    would cost an epoch.
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

    def __getitem__(self, index: int) -> Tensor | None:
        side = round(self.image_size / self.crop)
        mode = "L" if self.channels == 1 else "RGB"
        try:
            with Image.open(self.paths[index]) as file:
                file.draft(mode, (side, side))  # a JPEG need not be decoded at more than the size asked for
                image = file.convert(mode)
        except Exception:  # decoders raise anything; a broken file is one picture less, not the end of a run
            return None
        scale = side / min(image.size)
        width, height = (max(side, round(scale * length)) for length in image.size)
        left, top = (width - self.image_size) // 2, (height - self.image_size) // 2
        image = image.resize((width, height), Image.Resampling.BICUBIC)
        image = image.crop((left, top, left + self.image_size, top + self.image_size))
        array = np.array(image).reshape(self.image_size, self.image_size, self.channels)
        return torch.from_numpy(array).permute(2, 0, 1).contiguous()

    @cached_property
    def digest(self) -> str:
        """The first 12 hex digits of a SHA-256 over every file's last two names and size (contents are not read)."""
        content = hashlib.sha256()
        for path in self.paths:
            content.update(f"{os.path.join(*Path(path).parts[-2:])} {os.path.getsize(path)}\n".encode())
        return content.hexdigest()[:12]

    @property
    def mean(self) -> tuple[float, ...]:
        return IMAGENET_MEAN if self.channels == 3 else (sum(IMAGENET_MEAN) / 3,)

    @property
    def std(self) -> tuple[float, ...]:
        return IMAGENET_STD if self.channels == 3 else (sum(IMAGENET_STD) / 3,)

    def subset(self, indices: Tensor) -> "FolderSet":
        labels = None if self.labels is None else self.labels[indices]
        return dataclasses.replace(self, paths=tuple(self.paths[i] for i in indices.tolist()), labels=labels)


def folder(path: str | Path, split: str = "train", image_size: int | None = None, channels: int = 3) -> FolderSet:
    """The images under a path.

    PATH/train and PATH/test (or val) are its splits where they exist; a path without them is one set, "train". Within a
    split, sub-folders are classes in alphabetical order; images lying there directly make an unlabelled set.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder.")
    if channels not in (1, 3):
        raise ValueError(f"Images from a folder have 1 or 3 channels, not {channels}.")
    present = {key: root / name for key, names in SPLITS.items() for name in names[::-1] if (root / name).is_dir()}
    if present and split not in present:
        raise ValueError(f"{root} has the splits {' and '.join(sorted(present))}, not {split!r}.")
    if not present and split != "train":
        raise ValueError(f"{root} has no sub-folder for a {split!r} split; hold a part of 'train' out instead.")
    base = present.get(split, root)
    loose = _images(base, os.listdir)
    classes = sorted(entry.name for entry in base.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    members = {name: _images(base / name, _walk) for name in classes}
    members = {name: paths for name, paths in members.items() if paths}
    if loose and members:
        raise ValueError(f"{base} has images both beside and inside its sub-folders, so their labels are unclear.")
    if not loose and not members:
        raise ValueError(f"{base} has no images (files named {', '.join(IMG_EXTENSIONS[:4])} …).")
    size = image_size or 224
    name = f"folder:{root.name}"
    if loose:
        return FolderSet(name, tuple(loose), image_size=size, channels=channels)
    labels = torch.tensor([label for label, paths in enumerate(members.values()) for _ in paths])
    paths = tuple(path for paths in members.values() for path in paths)
    return FolderSet(name, paths, labels, tuple(members), image_size=size, channels=channels)


def _walk(path: Path) -> list[str]:
    return [os.path.relpath(os.path.join(top, name), path) for top, _, names in os.walk(path) for name in names]


def _images(path: Path, list_names: Callable[[Path], list[str]]) -> list[str]:
    names = (name for name in list_names(path) if name.lower().endswith(IMG_EXTENSIONS))
    return sorted(str(path / name) for name in names if not os.path.basename(name).startswith("."))
