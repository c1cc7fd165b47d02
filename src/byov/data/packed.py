"""Image sets in one .npz file: plain arrays, or the packed form whose images are compressed sheets.

Plain: the arrays that `npz` lists. Packed: `{split}_blob` in place of the images, with `image_shape` and a `codec`:
"xz" is one stream of raw pixels; "webp", "png" or "jpeg" are pictures at `{split}_offsets`, each a sheet with
`sheet_cols` images to a row.
"""

import io
import lzma
import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from byov.data.datasets import ImageSet

SPLITS = ("train", "test")


def npz(path: str | Path, split: str = "train", name: str | None = None) -> ImageSet:
    """The `split` of an image set in an .npz file, which is "train" or "test".

    Such a file holds `train_images` and `test_images` (uint8; NHWC, NCHW or NHW, with 1 or 3 channels), `train_labels`
    and `test_labels` (whole numbers from 0, one per image; a split without them is unlabelled), and `class_names` if
    the labels have names. One split is enough.
    """
    path = Path(path).expanduser()
    name = name or f"npz:{path.stem}"
    try:
        file = np.load(path, allow_pickle=False)
        keys = set(file.files)
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a readable .npz file.") from error
    here = [s for s in SPLITS if keys & {f"{s}_images", f"{s}_blob"}]
    if split not in here:
        has = " and ".join(here) or f"the arrays {', '.join(sorted(keys))}"
        wants = f"'{split}_images' (uint8; NHWC, NCHW or NHW) and '{split}_labels' (whole numbers)"
        hint = f"; it is to have {wants}" if split in SPLITS else ""
        raise ValueError(f"{path} has no {split!r} images; it has {has}{hint}.")
    images = file[f"{split}_images"] if f"{split}_images" in keys else _unpack(file, split)
    labels = {s: _labels(file[f"{s}_labels"], path) for s in SPLITS if f"{s}_labels" in keys}
    if "class_names" in keys:
        names = tuple(str(n) for n in file["class_names"])
    else:
        names = tuple(map(str, range(1 + max((int(part.max(initial=-1)) for part in labels.values()), default=-1))))
    own = torch.from_numpy(labels[split]) if split in labels else None
    return ImageSet(name, _nchw(images, path), own, names)


def _labels(labels: np.ndarray, path: Path) -> np.ndarray:
    """Labels as int64; floats that are whole pass, since NumPy makes them of whole numbers readily."""
    for label in labels.ravel().tolist():
        if not isinstance(label, int | float) or label % 1:
            raise ValueError(f"{path}: labels are whole numbers, not {label!r}.")
    return labels.astype(np.int64)


def _nchw(images: np.ndarray, path: Path) -> torch.Tensor:
    if images.dtype == np.uint8 and images.ndim == 3:
        images = images[:, None]
    elif images.dtype == np.uint8 and images.ndim == 4 and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    elif images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        got = f"{images.dtype} {images.shape}"
        raise ValueError(f"The images in {path} are to be uint8 of shape NHWC, NCHW or NHW, not {got}.")
    return torch.from_numpy(np.array(images, order="C"))  # a copy: what was unpacked may be read-only


def _unpack(file: np.lib.npyio.NpzFile, split: str) -> np.ndarray:
    height, width, *rest = (int(n) for n in file["image_shape"])
    blob = file[f"{split}_blob"]
    if str(file["codec"]) == "xz":
        return np.frombuffer(lzma.decompress(blob.tobytes()), np.uint8).reshape(-1, height, width, *rest)
    columns = int(file["sheet_cols"]) if "sheet_cols" in file.files else 1
    offsets = file[f"{split}_offsets"]
    tiles = []
    for start, stop in pairwise(offsets):
        with Image.open(io.BytesIO(blob[start:stop].tobytes())) as sheet:
            rows = np.asarray(sheet.convert("RGB")).reshape(-1, height, columns, width, 3)
        tiles.append(rows.transpose(0, 2, 1, 3, 4).reshape(-1, height, width, 3))
    return np.concatenate(tiles)
