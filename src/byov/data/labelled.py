"""Labelled images to evaluate a model on, in memory and in the size the model takes."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from byov.data.batches import Batches
from byov.data.datasets import FolderSet, ImageSet, check_memory
from byov.data.sources import load


def sized(
    name: str,
    split: str,
    root: str | Path | None = None,
    channels: int | None = None,
    image_size: int | None = None,
    native: bool = False,
) -> ImageSet | FolderSet:
    """Load a split with square images of `image_size` pixels a side.

    With `native`, for a network trained on images in their original shape, images whose longer side is already
    `image_size` are not resized.
    """
    data = load(name, split, root, channels=channels, image_size=None if native else image_size)
    return data if image_size in (None, data.image_size) else data.resized(image_size)


def labelled(
    name: str,
    split: str,
    root: str | Path | None = None,
    channels: int | None = None,
    image_size: int | None = None,
    native: bool = False,
    limit: int | None = None,
    seed: int = 0,
) -> ImageSet:
    """Load a split of a named set with its labels; `limit` takes a random subset of that size, in the set's order."""
    if limit is not None and limit < 1:
        raise ValueError(f"An evaluation needs at least one image, not a limit of {limit}.")
    data = sized(name, split, root, channels, image_size, native)
    if limit is not None and limit < len(data):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
        data = data.subset(order[:limit].sort().values)
    return in_memory(data, split)


def in_memory(data: ImageSet | FolderSet, split: str) -> ImageSet:
    """Load a labelled set into memory, leaving out images that cannot be read; raise if it has no labels."""
    if data.labels is None:
        raise ValueError(
            f"The {split} split of {data.name} has no labels, and an evaluation needs one for every image."
        )
    if isinstance(data, ImageSet):
        return data
    size = len(data) * data.channels * data.image_size**2
    check_memory(size, f"The {split} split of {data.name}", ": evaluate with --limit and --train-limit")
    batches = Batches(data, 256, shuffle=False, drop_last=False)
    parts = list(batches)
    images, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("images", "labels"))
    if batches.unreadable:
        print(batches.left_out(), file=sys.stderr)
    return ImageSet(data.name, images, labels, data.class_names)


def check_classes(train: ImageSet, test: ImageSet, split: str) -> None:
    """Raise if the splits have different classes: in a folder, labels are numbered by its sub-folders."""
    if train.class_names != test.class_names:
        counts = f"{len(train.class_names)} and {len(test.class_names)}"
        raise ValueError(f"The training and the {split} split of {test.name} have different classes ({counts}).")
