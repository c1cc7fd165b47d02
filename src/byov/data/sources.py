"""Image sets by name.

    load("digits")                                the default: scikit-learn's, nothing to fetch
    load("cifar10", "test", root="~/data")        NAME.npz in the folder, else torchvision's copy there
    load("folder:PATH", "train", image_size=256)  images on disk, read as they are needed
    load("npz:PATH", "test")                      arrays of your own

The folder is `root`, else the environment's BYOV_DATA, else ~/.cache/byov.
"""

import difflib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from torch import Tensor

from byov.data.datasets import ImageSet, holdout
from byov.data.folder import FolderSet, folder
from byov.data.packed import npz

TORCHVISION: dict[str, Callable[[Path, str, bool], Any]] = {
    "cifar10": lambda root, split, get: torchvision.datasets.CIFAR10(root, split == "train", download=get),
    "cifar100": lambda root, split, get: torchvision.datasets.CIFAR100(root, split == "train", download=get),
    "fashion-mnist": lambda root, split, get: torchvision.datasets.FashionMNIST(root, split == "train", download=get),
    "svhn": lambda root, split, get: torchvision.datasets.SVHN(root, split, download=get),
    "stl10": lambda root, split, get: torchvision.datasets.STL10(root, split, download=get),
}
EXTRA_SPLITS = {"svhn": ("extra",), "stl10": ("unlabeled",)}
NAMES = ("digits", *TORCHVISION, "imagenet")


def data_root(root: str | Path | None = None) -> Path:
    """Where data sets lie: `root`, else the environment's BYOV_DATA, else ~/.cache/byov."""
    return Path(root or os.environ.get("BYOV_DATA") or "~/.cache/byov").expanduser()


def load(
    name: str = "digits",
    split: str = "train",
    root: str | Path | None = None,
    *,
    image_size: int | None = None,
    channels: int | None = None,
    download: bool = False,
) -> ImageSet | FolderSet:
    """The `split` ("train" or "test"; "unlabeled" for stl10, "extra" for svhn) of a named set.

    `image_size` and `channels` (1 or 3) resize it: `load("digits", image_size=32, channels=3)` suits a network made for
    CIFAR. Nothing is fetched unless `download` is set.
    """
    kind, colon, path = name.partition(":")
    if colon and kind == "folder":
        return folder(path, split, image_size, channels or 3)
    if name == "imagenet":
        return _imagenet(data_root(root), split, image_size)
    if colon and kind == "npz":
        return npz(path, split).resized(image_size, channels)
    if (colon and kind == "table") or name.lower().endswith((".csv", ".tsv", ".txt")):
        raise ValueError(
            f"{name!r} is no set of images: "
            "byov train takes a table as data.name = 'table:FILE', Python by byov.data.table."
        )
    if colon:
        raise ValueError(f"A data set's prefix is 'folder:' or 'npz:', not {kind + colon!r}.")
    if split not in ("train", "test", *EXTRA_SPLITS.get(name, ())):
        raise ValueError(f"{name} has the splits {', '.join(('train', 'test', *EXTRA_SPLITS.get(name, ())))}.")
    data = digits(split) if name == "digits" else _named(name, split, data_root(root), download)
    return data.resized(image_size, channels)


def digits(split: str = "train") -> ImageSet:
    """scikit-learn's 1,797 digits, 8×8, one channel, 0…16 spread over 0…255; a fixed quarter is the test set."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images).mul(255 / 16).round().byte().unsqueeze(1)
    names = tuple(str(n) for n in bunch.target_names)
    everything = ImageSet("digits", pixels, torch.from_numpy(bunch.target).long(), names)
    train, test = holdout(everything, fraction=0.25, seed=0)
    return train if split == "train" else test


def cifar10h(root: str | Path | None = None) -> Tensor:
    """CIFAR-10H: how many of about 50 people chose each class, (10,000, 10), in the order of CIFAR-10's test set."""
    path = data_root(root) / "cifar10h.npz"
    if not path.is_file():
        raise ValueError(f"{path} is missing: save CIFAR-10H's counts (10,000 × 10) there as the array 'counts'.")
    with np.load(path, allow_pickle=False) as file:
        return torch.from_numpy(file["counts"].astype(np.int64))


def _named(name: str, split: str, root: Path, download: bool) -> ImageSet:
    stored = root / f"{name.replace('-', '_')}.npz"
    if stored.is_file() and split in ("train", "test"):
        return npz(stored, split, name)
    if name not in TORCHVISION:
        close = difflib.get_close_matches(name, NAMES, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else f". Known names: {', '.join(NAMES)}."
        raise ValueError(f"There is no data set called {name!r} and no {stored}{hint}")
    try:
        data = TORCHVISION[name](root, split, download)
    except (RuntimeError, OSError) as error:
        if download:
            raise ValueError(f"{name} could not be downloaded to {root}: {error}") from error
        raise ValueError(
            f"{name} is not in {root}: download it (download=True, or --download), put {stored.name} there, "
            "or name the folder that has it (root, or the environment's BYOV_DATA)."
        ) from error
    images = torch.as_tensor(data.data)
    if images.ndim == 3:
        images = images.unsqueeze(1)
    elif images.shape[-1] == 3:
        images = images.permute(0, 3, 1, 2)
    labels = torch.as_tensor(data.labels if hasattr(data, "labels") else data.targets).long()
    names = tuple(getattr(data, "classes", map(str, range(10))))
    return ImageSet(name, images.contiguous(), None if split == "unlabeled" else labels, names)


def _imagenet(root: Path, split: str, image_size: int | None) -> FolderSet:
    """ImageNet as class folders under root/imagenet (or root itself); test images are the central 7/8, as is usual."""
    for place in (root / "imagenet", root):
        if any((place / part).is_dir() for part in ("train", "val")):
            data = folder(place, split, image_size)
            crop = 0.875 if split == "test" else 1.0
            return FolderSet("imagenet", data.paths, data.labels, data.class_names, data.image_size, crop=crop)
    raise ValueError(
        f"ImageNet is not in {root / 'imagenet'}: it may not be downloaded freely, so unpack its archives there "
        "(torchvision.datasets.ImageNet does it) into train/CLASS/*.JPEG and val/CLASS/*.JPEG."
    )
