"""Image sets by name.

    load("digits")                                the default: scikit-learn's digits, no download
    load("cifar10", "test", root="~/data")        NAME.npz in the folder, else torchvision's copy there
    load("folder:PATH", "train", image_size=256)  images on disk, read when needed
    load("npz:PATH", "test")                      your own arrays

The folder is `root`, else the environment variable BYOV_DATA, else ~/.cache/byov.
"""

import difflib
import io
import lzma
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image
from torch import Tensor
from torchvision.datasets.folder import IMG_EXTENSIONS

from byov.data.arrays import Arrays
from byov.data.datasets import FolderSet, ImageSet, check_memory, holdout
from byov.data.printable import printable

TORCHVISION: dict[str, Callable[[Path, str, bool], Any]] = {
    "cifar10": lambda root, split, get: torchvision.datasets.CIFAR10(root, split == "train", download=get),
    "cifar100": lambda root, split, get: torchvision.datasets.CIFAR100(root, split == "train", download=get),
    "fashion-mnist": lambda root, split, get: torchvision.datasets.FashionMNIST(root, split == "train", download=get),
    "svhn": lambda root, split, get: torchvision.datasets.SVHN(root, split, download=get),
    "stl10": lambda root, split, get: torchvision.datasets.STL10(root, split, download=get),
}
NAMES = ("digits", *TORCHVISION, "imagenet")
SPLITS = ("train", "test")
EXTRA_SPLITS = {"svhn": ("extra",), "stl10": ("unlabeled",)}
LARGEST = 4096  # maximum image_size
MOST_CLASSES = 10_000  # for unnamed classes, unless there are more labels
SPLIT_FOLDERS = {"train": ("train", "training"), "test": ("test", "val", "valid", "validation")}


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of the data sets: `root`, else the environment variable BYOV_DATA, else ~/.cache/byov."""
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
    """Load the `split` ("train" or "test"; "unlabeled" for stl10, "extra" for svhn) of a named set.

    `image_size` and `channels` (1 or 3) convert the images: `load("digits", image_size=32, channels=3)` suits a network
    made for CIFAR. Nothing is downloaded unless `download` is set.
    """
    check_shape(image_size, channels)
    kind, colon, path = name.partition(":")
    if kind in ("folder", "npz") and not path.strip():
        raise ValueError(f"The data set's name {name!r} names no {kind if kind == 'folder' else 'file'}: {kind}:PATH.")
    if colon and kind == "folder":
        return folder(path, split, image_size, channels or 3)
    if name == "imagenet":
        return _imagenet(data_root(root), split, image_size, channels or 3)
    if colon and kind == "npz":
        return npz(path, split).resized(image_size, channels)
    if (colon and kind == "table") or name.lower().endswith((".csv", ".tsv", ".txt")):
        raise ValueError(
            f"{name!r} is not an image set: "
            "byov train takes a table as data.name = 'table:FILE', Python by byov.data.table."
        )
    if colon:
        raise ValueError(f"A data set's prefix is 'folder:' or 'npz:', not {kind + colon!r}.")
    splits = (*SPLITS, *EXTRA_SPLITS.get(name, ()))
    if split not in splits:
        raise ValueError(f"{name} has the splits {', '.join(splits)}.")
    data = digits(split) if name == "digits" else _named(name, split, data_root(root), download)
    return data.resized(image_size, channels)


def check_shape(image_size: int | None, channels: int | None, prefix: str = "") -> None:
    """Raise if images cannot be converted to this size or number of channels; `prefix` precedes the names in errors."""
    if image_size is not None and not 1 <= image_size <= LARGEST:
        raise ValueError(f"{prefix}image_size is a number of pixels from 1 to {LARGEST}, not {image_size}.")
    if channels not in (None, 1, 3):
        raise ValueError(f"{prefix}channels is 1 or 3, not {channels}.")


def digits(split: str = "train") -> ImageSet:
    """Load scikit-learn's 1,797 digits, 8×8, one channel, 0…16 scaled to 0…255; a fixed quarter is the test set."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = torch.from_numpy(bunch.images).mul(255 / 16).round().byte().unsqueeze(1)
    names = tuple(str(n) for n in bunch.target_names)
    everything = ImageSet("digits", pixels, torch.from_numpy(bunch.target).long(), names)
    train, test = holdout(everything, fraction=0.25, seed=0)
    return train if split == "train" else test


def cifar10h(root: str | Path | None = None) -> Tensor:
    """Load CIFAR-10H: how many of about 50 annotators chose each class, (10,000, 10), in CIFAR-10's test order."""
    path = data_root(root) / "cifar10h.npz"
    if not path.is_file():
        raise ValueError(f"{path} is missing: save CIFAR-10H's counts (10,000 × 10) there as the array 'counts'.")
    return torch.from_numpy(Arrays(path)["counts"].astype(np.int64))


def npz(path: str | Path, split: str = "train", name: str | None = None) -> ImageSet:
    """Load the `split`, "train" or "test", of an image set in an .npz file.

    The file holds `train_images` and `test_images` (uint8; NHWC, NCHW or NHW, with 1 or 3 channels), `train_labels` and
    `test_labels` (integers from 0, one per image; a split without them is unlabelled), and optionally `class_names`.
    One split is enough. Images may be packed, see `_unpack`.
    """
    file = Arrays(path)
    here = [s for s in SPLITS if f"{s}_images" in file or f"{s}_blob" in file]
    if split not in here:
        has = " and ".join(here) or f"the arrays {', '.join(sorted(file.names))}"
        wants = f"'{split}_images' (uint8; NHWC, NCHW or NHW) and '{split}_labels' (whole numbers)"
        hint = f"; it must have {wants}" if split in SPLITS else ""
        raise ValueError(f"{file.path} has no {split!r} images; it has {has}{hint}.")
    images = file[f"{split}_images"] if f"{split}_images" in file else _unpack(file, split)
    labels = {s: _labels(file[f"{s}_labels"], file.path) for s in SPLITS if f"{s}_labels" in file}
    if "class_names" in file:
        names = tuple(str(n) for n in file["class_names"].ravel())
    else:
        names = _numbered(
            np.concatenate([part.ravel() for part in (*labels.values(), np.empty(0, np.int64))]), file.path
        )
    own = torch.from_numpy(labels[split]) if split in labels else None
    return ImageSet(name or f"npz:{file.path.stem}", _nchw(images, file.path), own, names)


def _labels(labels: np.ndarray, path: Path) -> np.ndarray:
    """Return labels as int64; integral floats are accepted, since NumPy readily turns integers into floats."""
    with np.errstate(invalid="ignore"):  # infinite ones
        odd = labels[labels % 1 != 0] if labels.dtype.kind in "biuf" else labels
    if odd.size:
        raise ValueError(f"{path}: labels are whole numbers, not {odd.flat[0].item()!r}.")
    if labels.size and abs(highest := labels.max().item()) >= 2**63:
        raise ValueError(f"{path}: {highest:.4g} is too large for a label.")
    return labels.astype(np.int64)


def _numbered(labels: np.ndarray, path: Path) -> tuple[str, ...]:
    """Name classes by their numbers; raise if the largest is out of proportion to the number of labels."""
    highest = int(labels.max(initial=-1))
    if highest >= max(MOST_CLASSES, len(labels)):
        raise ValueError(
            f"{path}: a label of {highest} among {len(labels)} is out of proportion: count classes from 0."
        )
    return tuple(map(str, range(1 + highest)))


def _nchw(images: np.ndarray, where: str | Path) -> Tensor:
    got = f"{images.dtype} {images.shape}"
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"The images in {where} must be uint8 of shape NHWC, NCHW or NHW, not {got}.")
    return torch.from_numpy(np.array(images, order="C"))  # a copy: unpacked arrays may be read-only


def _unpack(file: Arrays, split: str) -> np.ndarray:
    """Read images packed as `{split}_blob`, with `image_shape` and a `codec`.

    "xz" is one stream of raw pixels; "webp", "png" and "jpeg" are pictures at `{split}_offsets`, each a sheet with
    `sheet_cols` images per row.
    """
    shape, blob, codec = file["image_shape"], file[f"{split}_blob"], str(file["codec"])
    offsets = None if codec == "xz" else file[f"{split}_offsets"]
    columns = int(file["sheet_cols"]) if "sheet_cols" in file else 1
    with file.errors_named(f"has {split} images that cannot be unpacked"):
        height, width, *rest = map(int, shape)
        if offsets is None:
            count = len(file[f"{split}_labels"]) if f"{split}_labels" in file else None
            pixels = _decompressed(blob.tobytes(), None if count is None else count * math.prod((height, width, *rest)))
            return np.frombuffer(pixels, np.uint8).reshape(-1, height, width, *rest)
        tiles = []
        for start, stop in pairwise(offsets):
            with Image.open(io.BytesIO(blob[start:stop].tobytes())) as sheet:
                rows = np.asarray(sheet.convert("RGB")).reshape(-1, height, columns, width, 3)
            tiles.append(rows.transpose(0, 2, 1, 3, 4).reshape(-1, height, width, 3))
        return np.concatenate(tiles)


def _decompressed(content: bytes, size: int | None) -> bytes:
    """Decompress xz, up to `size` bytes or the available memory: a small file may expand enormously."""
    stream, parts, found = lzma.LZMADecompressor(), [], 0
    while not (stream.eof and not content):
        if stream.eof:  # a file may hold several streams
            stream = lzma.LZMADecompressor()
        parts.append(stream.decompress(content, 1 << 24))
        content, found = stream.unused_data, found + len(parts[-1])
        if size is not None and found > size:
            raise ValueError(f"there are more bytes of pixels than the {size:,} that its labels are of")
        check_memory(2 * found, "what it holds")
        if not parts[-1] and not stream.eof and stream.needs_input:
            raise ValueError("Compressed data ended too early")
    return b"".join(parts)


def _named(name: str, split: str, root: Path, download: bool) -> ImageSet:
    stored = root / f"{name.replace('-', '_')}.npz"
    if stored.is_file() and split in SPLITS:
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
            f"{name} is not in {root}: let byov.data.load({name!r}, root={str(root)!r}, download=True) fetch it once in"
            f" Python, put {stored.name} there, or name the folder that has it (--root, --set data.root=…, or the"
            " environment's BYOV_DATA)."
        ) from error
    labels = torch.as_tensor(data.labels if hasattr(data, "labels") else data.targets).long()
    names = tuple(getattr(data, "classes", map(str, range(10))))
    return ImageSet(name, _nchw(np.asarray(data.data), root), None if split == "unlabeled" else labels, names)


def folder(path: str | Path, split: str = "train", image_size: int | None = None, channels: int = 3) -> FolderSet:
    """Find the images under a path.

    PATH/train and PATH/test (or val) are its splits if they exist; a path without them is one set, "train". Within a
    split, sub-folders are classes in alphabetical order; images directly in the split make an unlabelled set.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder.")
    present = {k: root / name for k, names in SPLIT_FOLDERS.items() for name in names[::-1] if (root / name).is_dir()}
    if present and split not in present:
        raise ValueError(f"{root} has the splits {' and '.join(sorted(present))}, not {split!r}.")
    if not present and split != "train":
        raise ValueError(
            f"{root} has no {split!r} split: put the test images of each class in {root / 'test' / 'CLASS'}"
            " (byov train and pretrain can hold out a part of 'train' instead: data.holdout)."
        )
    base = present.get(split, root)
    loose = _images(base, os.listdir(base))
    classes = sorted(entry.name for entry in base.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    members = {name: _images(base / name, _walk(base / name)) for name in classes}
    members = {name: paths for name, paths in members.items() if paths}
    if loose and members:
        raise ValueError(f"{base} has images both beside and inside its sub-folders, so their labels are unclear.")
    if not loose and not members:
        raise ValueError(f"{base} has no images (files named {', '.join(IMG_EXTENSIONS[:4])} …).")
    labels = torch.tensor([label for label, paths in enumerate(members.values()) for _ in paths]) if members else None
    paths = tuple(loose or (path for paths in members.values() for path in paths))
    names = tuple(map(printable, members))
    return FolderSet(f"folder:{printable(root.name)}", paths, labels, names, image_size or 224, channels)


def is_picture(path: str | Path) -> bool:
    """Check by its name whether a path is a picture; the file need not exist."""
    return str(path).lower().endswith(IMG_EXTENSIONS) and not Path(path).expanduser().is_dir()


def pictures(paths: Sequence[str | Path], image_size: int | None = None, channels: int = 3) -> FolderSet:
    """Return picture files as an unlabelled set, in the order given."""
    files = [Path(path).expanduser() for path in paths]
    if missing := [file for file in files if not file.is_file()]:
        raise ValueError(f"There is no picture at {missing[0]}.")
    name = files[0].name if len(files) == 1 else f"{len(files)} pictures"
    return FolderSet(printable(name), tuple(map(str, files)), None, (), image_size or 224, channels)


def _walk(path: Path) -> list[str]:
    return [os.path.relpath(os.path.join(top, name), path) for top, _, names in os.walk(path) for name in names]


def _images(path: Path, names: list[str]) -> list[str]:
    """Return the paths of files named as images, including broken links, which count as unreadable images."""
    images = (name for name in names if name.lower().endswith(IMG_EXTENSIONS))
    places = (str(path / name) for name in images if not os.path.basename(name).startswith("."))
    return sorted(place for place in places if os.path.isfile(place) or not os.path.exists(place))


def _imagenet(root: Path, split: str, image_size: int | None, channels: int = 3) -> FolderSet:
    """Find ImageNet's class folders under root/imagenet (or root itself); test images are the usual central 7/8."""
    for place in (root / "imagenet", root):
        if any((place / part).is_dir() for part in ("train", "val")):
            found = folder(place, split, image_size, channels)
            return replace(found, name="imagenet", crop=0.875 if split == "test" else 1.0)
    raise ValueError(
        f"ImageNet is not in {root / 'imagenet'}: it may not be downloaded freely, so unpack its archives there "
        "(torchvision.datasets.ImageNet does it) into train/CLASS/*.JPEG and val/CLASS/*.JPEG."
    )
