"""Image sets by name: digits, .npz files, folders, torchvision's copies, and what is missing."""

import lzma
import os
import re
import tracemalloc
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from byov.data import ImageSet, cifar10h, data_root, load
from byov.data.config import DataConfig
from byov.data.sources import npz


def write(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 12), (value,) * 3).save(path)


def test_digits_are_scikit_learns() -> None:
    train, test = load("digits"), load("digits", "test")
    assert (len(train), len(test)) == (1347, 450)
    assert train.images.shape[1:] == (1, 8, 8)
    everything = torch.cat([train.images, test.images]).flatten(1)
    original = torch.from_numpy(load_digits().data * (255 / 16)).round().byte()
    assert sorted(map(tuple, everything.tolist())) == sorted(map(tuple, original.tolist()))
    assert train.labels.bincount().min() > 120
    assert train.digest == load().digest
    assert load("digits", image_size=32, channels=3).images.shape == (1347, 3, 32, 32)


@pytest.mark.parametrize(
    ("shape", "channels", "dtype"),
    [((7, 5, 4, 3), 3, np.uint8), ((7, 5, 4), 1, np.int16), ((7, 3, 5, 4), 3, np.float32), ((7, 5, 4, 1), 1, bool)],
)
def test_plain_npz(tmp_path: Path, shape: tuple[int, ...], channels: int, dtype: type) -> None:
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    labels = np.array([0, 1, 1, 0, 1, 1, 0], dtype)
    np.savez(tmp_path / "own.npz", train_images=images, train_labels=labels, test_images=images[:2])
    data, test = (load(f"npz:{tmp_path / 'own.npz'}", split) for split in ("train", "test"))
    theirs = images if shape[1] == 3 else images.reshape(7, 5, 4, channels).transpose(0, 3, 1, 2)
    assert np.array_equal(data.images.numpy(), theirs)
    assert (data.labels.dtype, data.labels.tolist()) == (torch.int64, labels.tolist())
    assert (data.class_names, test.labels, len(test)) == (("0", "1"), None, 2)


@pytest.mark.parametrize(("codec", "columns"), [("xz", 1), ("png", 1), ("png", 3), ("webp", 2)])
def test_packed_npz(tmp_path: Path, codec: str, columns: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 6, 4, 3), dtype=np.uint8)
    arrays: dict[str, np.ndarray] = {"image_shape": np.array([6, 4, 3]), "codec": np.array(codec)}
    if codec == "xz":
        blob = b"".join(lzma.compress(half.tobytes()) for half in (images[:6], images[6:]))  # two streams
    else:
        arrays["sheet_cols"] = np.array(columns)
        pieces = []
        for half in (images[:6], images[6:]):  # two sheets, `columns` images to a row
            rows = [np.concatenate(list(half[i : i + columns]), axis=1) for i in range(0, 6, columns)]
            buffer = BytesIO()
            Image.fromarray(np.concatenate(rows)).save(buffer, codec, lossless=True)
            pieces.append(buffer.getvalue())
        blob = b"".join(pieces)
        arrays["train_offsets"] = np.cumsum([0, *map(len, pieces)])
    np.savez(tmp_path / "set.npz", train_blob=np.frombuffer(blob, np.uint8), train_labels=np.arange(12) % 2, **arrays)
    data = load("set", root=tmp_path)  # any NAME.npz in the folder is a data set
    assert np.array_equal(data.images.permute(0, 2, 3, 1).numpy(), images)


IMAGES = np.zeros((2, 4, 4), np.uint8)
BLOB = {"train_blob": np.zeros(9, np.uint8), "image_shape": np.array([4, 4])}


def labelled(*labels: Any) -> dict[str, Any]:
    return {"train_images": IMAGES, "train_labels": np.array(labels)}


@pytest.mark.parametrize(
    ("arrays", "split", "sentence"),
    [
        ({"weights": np.zeros(3)}, "train", "it has the arrays weights"),
        ({"train_images": np.zeros((2, 4, 4, 3))}, "train", r"uint8 .*, not float64 \(2, 4, 4, 3\)"),
        ({"train_images": np.zeros((2, 4, 4, 5), np.uint8)}, "train", r"NHW, not uint8 \(2, 4, 4, 5\)"),
        ({"train_images": IMAGES[:, :0]}, "train", r"none of them 0, not torch.uint8 \(2, 1, 0, 4\)"),
        ({"train_images": IMAGES[:0]}, "train", "none of them 0"),
        ({"train_images": IMAGES}, "test", "no 'test' images; it has train; it must have 'test_images'"),
        ({"train_images": IMAGES}, "extra", r"no 'extra' images; it has train\.$"),
        ({"images": IMAGES}, "test", r"the arrays images; .* 'test_images' \(uint8; .* and 'test_labels' \(whole"),
        (labelled(0, 0, 0), "train", "one per image"),
        (labelled(0, 39 * 10**17), "train", "3900000000000000000 among 2 is out"),
        (labelled(0, 10**8), "train", "100000000 among 2 is out of proportion"),
        (labelled(0, 1e300), "train", r"own\.npz: 1e\+300 is too large"),
        (labelled(0, -1), "train", "labels -1 to 0 do not fit"),
        ({"train_blob": IMAGES, "codec": "xz"}, "train", r"own\.npz has no array 'image_shape'; it has"),
        ({**BLOB, "codec": "xz"}, "train", "cannot be unpacked: Compressed"),
        ({**BLOB, "codec": "png"}, "train", "no array 'train_offsets'"),
        (
            {**BLOB, "codec": "png", "train_offsets": np.array([0, 9])},
            "train",
            r"own\.npz has train images that cannot be unpacked: cannot identify",
        ),
    ],
)
def test_bad_npz(tmp_path: Path, arrays: dict[str, Any], split: str, sentence: str) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(ValueError, match=sentence):
        load(f"npz:{tmp_path / 'own.npz'}", split)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without pipes")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"x\.npz is not a readable \.npz file: it is a folder, a pipe or a device"):
        npz(tmp_path / "x.npz")


def test_few_bytes_that_stand_for_very_many_are_refused_before_they_are_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 MB of zeros in a few KB: more than the labels are of, or than there is memory for."""
    zeros = bytes(100_000_000)
    packed = {"codec": np.array("xz"), "image_shape": np.array([10, 10])}
    blob = np.frombuffer(lzma.compress(zeros), np.uint8)
    np.savez(tmp_path / "xz.npz", train_blob=blob, train_labels=np.zeros(50, int), **packed)
    with pytest.raises(ValueError, match=r"xz.npz has train images .*: there are more bytes of pixels than the 5,000"):
        npz(tmp_path / "xz.npz")
    np.savez(tmp_path / "bare.npz", train_blob=blob, **packed)
    np.savez_compressed(tmp_path / "zip.npz", train_images=np.frombuffer(zeros, np.uint8).reshape(-1, 10, 10))
    assert len(npz(tmp_path / "bare.npz")) == len(npz(tmp_path / "zip.npz")) == 1_000_000
    monkeypatch.setattr("byov.data.datasets.free_memory", lambda: 50_000_000)
    for name, sentence in (("bare.npz", "what it holds would take"), ("zip.npz", "no readable array 'train_images'")):
        tracemalloc.start()
        with pytest.raises(ValueError, match=rf"{name} has .*{sentence}.* in memory"):
            npz(tmp_path / name)
        assert tracemalloc.get_traced_memory()[1] < 90_000_000
        tracemalloc.stop()


def test_an_npz_with_any_byte_flipped_is_read_or_named(tmp_path: Path) -> None:
    """Also one that is cut short or empty, is no archive at all, or has members that are no arrays."""
    path = tmp_path / "own.npz"
    np.savez_compressed(path, train_images=IMAGES, train_labels=np.array([0, 1]))
    whole, before = path.read_bytes(), load(f"npz:{path}").digest
    contents = [whole[:i] + bytes([whole[i] ^ 0x41]) + whole[i + 1 :] for i in range(0, len(whole), 3)]
    contents += [b"", b"PK\x03\x04 not a zip", whole[: len(whole) // 2]]
    told = []
    for content in contents:
        path.write_bytes(content)
        try:
            assert load(f"npz:{path}").digest == before
        except ValueError as error:
            told.append(str(error))
    assert len(told) > len(contents) / 2
    assert all(str(path) in sentence for sentence in told)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train_images", b"junk")
    with pytest.raises(ValueError, match=r"own\.npz: 'train_images' is not an array\."):
        load(f"npz:{path}")
    with pytest.raises(ValueError, match=r"none\.npz is not a readable \.npz file: No such file"):
        load(f"npz:{tmp_path / 'none.npz'}")


SIZE = "image_size is a number of pixels from 1 to 4096, not"


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        *(({"image_size": n}, f"data.{SIZE} {n}") for n in (-1, 0, 100_000)),
        ({"channels": 2}, "data.channels is 1 or 3, not 2"),
        ({"holdout": 1.0}, "data.holdout is a share from 0 to below 1, not 1.0"),
        ({"holdout": float("nan")}, "data.holdout is a share"),
        ({"holdout_seed": 2**63}, "data.holdout_seed is a whole number"),
    ],
)
def test_settings_that_images_cannot_have_are_named(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DataConfig(**setting)


def test_sizes_are_refused_before_anything_is_made() -> None:
    with pytest.raises(ValueError, match=f"^{SIZE} 0"):
        load("digits", image_size=0)
    many = ImageSet("many", torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(10**9, 1, 1, 1))
    with pytest.raises(ValueError, match=r"many with 4096 pixels a side would take .* GiB in memory, where"):
        many.resized(4096)


@pytest.mark.parametrize(
    ("label", "shown"),
    [("cat", "'cat'"), (0.5, "0.5"), (-0.25, "-0.25"), (np.nan, "nan"), (np.inf, "inf"), (1j, "1j"), (b"a", "b'a'")],
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_labels_of_an_npz_are_whole_numbers(tmp_path: Path, label: object, shown: str, split: str) -> None:
    """Also those of the other split, which are counted for the names of the classes."""
    labels = {"train_labels": [0, 1], "test_labels": [0, 1], f"{split}_labels": [label, label]}
    np.savez(tmp_path / "own.npz", train_images=IMAGES, test_images=IMAGES, **labels)
    with pytest.raises(ValueError, match=rf"own\.npz: labels are whole numbers, not {re.escape(shown)}\.$"):
        load(f"npz:{tmp_path / 'own.npz'}")


def test_torchvisions_copy_is_found(tmp_path: Path) -> None:
    """Fashion-MNIST's own idx files, small, where torchvision keeps them."""
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (9, 28, 28), dtype=np.uint8)
    for part, count in (("train", 9), ("t10k", 4)):
        header = np.array([0x803, count, 28, 28], ">i4").tobytes()
        (raw / f"{part}-images-idx3-ubyte").write_bytes(header + images[:count].tobytes())
        labels = np.arange(count, dtype=np.uint8)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(np.array([0x801, count], ">i4").tobytes() + labels.tobytes())
    train, test = (load("fashion-mnist", split, tmp_path) for split in ("train", "test"))
    assert np.array_equal(train.images.numpy(), images[:, None])
    assert len(test) == 4
    assert train.class_names[9] == "Ankle boot"
    np.savez(tmp_path / "fashion_mnist.npz", train_images=images[:2], train_labels=np.zeros(2, np.uint8))
    assert len(load("fashion-mnist", "train", tmp_path)) == 2  # an .npz of that name comes first


def test_class_folders(tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / "cat" / f"{i}.png", i)
        write(tmp_path / "dog" / "deep" / f"{i}.png", 100 + i)
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    write(tmp_path / "dog" / ".hidden.png", 0)
    (tmp_path / "empty").mkdir()
    data, grey = (load(f"folder:{tmp_path}", image_size=8, channels=channels) for channels in (3, 1))
    assert data.class_names == ("cat", "dog")
    assert data.labels.tolist() == [0] * 3 + [1] * 3
    assert torch.equal(data[4], torch.full((3, 8, 8), 101, dtype=torch.uint8))
    assert torch.equal(grey[4], torch.full((1, 8, 8), 101, dtype=torch.uint8))
    assert (len(data.mean), len(grey.mean), len(data.digest)) == (3, 1, 12)


def test_flat_folders_have_no_labels(tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / f"{i}.jpg", i)
    data = load(f"folder:{tmp_path}")
    assert (data.labels, len(data), data.image_size) == (None, 3, 224)
    write(tmp_path / "class" / "0.png", 0)
    with pytest.raises(ValueError, match="both beside and inside"):
        load(f"folder:{tmp_path}")


def test_splits_of_a_folder(tmp_path: Path) -> None:
    for path in ("train/a/0.png", "val/a/0.png", "val/b/0.png"):
        write(tmp_path / path, 0)
    (tmp_path / "void").mkdir()
    assert (len(load(f"folder:{tmp_path}")), len(load(f"folder:{tmp_path}", "test"))) == (1, 2)
    imagenet = load("imagenet", "test", tmp_path)
    assert (imagenet.name, imagenet.crop) == ("imagenet", 0.875)
    for path, split, sentence in (
        (tmp_path, "extra", "splits test and train, not 'extra'"),
        (tmp_path / "val", "test", "test/CLASS"),
        (tmp_path / "void", "train", "no images"),
        (tmp_path / "absent", "train", "not a folder"),
    ):
        with pytest.raises(ValueError, match=sentence):
            load(f"folder:{path}", split)


@pytest.mark.parametrize(
    ("name", "split", "sentence"),
    [
        *((name, "train", f"{name} is not in .*download") for name in ("cifar10", "cifar100", "svhn", "stl10")),
        ("fashion-mnist", "train", "fashion-mnist is not in .*download"),
        ("imagenet", "train", "unpack its archives"),
        ("cifra10", "train", "did you mean cifar10"),
        ("qqqq", "train", "Known names: digits"),
        ("zip:there", "train", "prefix is"),
        ("digits", "validation", "splits train, test"),
        ("folder:", "train", "'folder:' names no folder"),  # not the working directory
        ("npz: ", "train", "'npz: ' names no file"),
    ],
)
def test_missing_data_says_how_to_get_it(tmp_path: Path, name: str, split: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        load(name, split, tmp_path)


def test_the_folder_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"cifar10h\.npz is missing"):
        cifar10h(tmp_path)
    monkeypatch.setenv("BYOV_DATA", str(tmp_path / "there"))
    assert data_root() == tmp_path / "there"
    assert data_root("here") == Path("here")
