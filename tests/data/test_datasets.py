"""Image sets in memory: the container, holding out, digits, .npz files and torchvision's copies."""

import hashlib
import lzma
import re
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits

from byov.data import ImageSet, cifar10h, data_root, holdout, load


def some_images(count: int = 6, channels: int = 3, side: int = 5) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, side, side), dtype=torch.uint8, generator=g)


def test_mean_and_std_are_the_pixels() -> None:
    data = ImageSet("x", some_images(5000))
    pixels = data.images.double() / 255
    assert data.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-12)
    assert data.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-12)
    assert ImageSet("grey", torch.full((2, 1, 3, 3), 7, dtype=torch.uint8)).std == (1.0,)


def test_digest_tells_contents_apart() -> None:
    images, labels = some_images(), torch.arange(6)
    names = tuple("abcdef")
    data = ImageSet("x", images, labels, names)
    content = repr((6, 3, 5, 5)).encode() + images.numpy().tobytes() + labels.numpy().tobytes()
    assert data.digest == hashlib.sha256(content).hexdigest()[:12]
    other = images.clone()
    other[5, 2, 4, 4] += 1
    digests = {
        data.digest,
        ImageSet("x", other, labels, names).digest,
        ImageSet("x", images, labels.flip(0), names).digest,
    }
    assert len(digests) == 3
    assert ImageSet("y", images.clone(), labels, names).digest == data.digest
    assert data.subset(torch.tensor([0, 1])).digest != data.digest


def test_resizing() -> None:
    data = ImageSet("x", some_images(3, 1, 8))
    large = data.resized(32, 3)
    assert large.images.shape == (3, 3, 32, 32)
    assert large.images.is_contiguous()
    assert torch.equal(large.images[:, 0], large.images[:, 2])
    assert torch.equal(large.resized(channels=1).images, data.resized(32).images)
    assert torch.equal(data.resized(8, 1).images, data.images)
    flat = ImageSet("x", torch.full((1, 1, 4, 4), 200, dtype=torch.uint8)).resized(9)
    assert flat.images.unique().tolist() == [200]
    with pytest.raises(ValueError, match="cannot become"):
        data.resized(channels=2)


@pytest.mark.parametrize(
    ("images", "labels", "sentence"),
    [
        (torch.rand(2, 3, 4, 4), None, "uint8"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), None, "N, C, H, W"),
        (torch.zeros(0, 1, 4, 4, dtype=torch.uint8), None, "N > 0"),
        (some_images(2), torch.zeros(3, dtype=torch.int64), "one per image"),
        (some_images(2), torch.zeros(2), "int64"),
        (some_images(2), torch.tensor([0, 2]), "do not fit"),
        (some_images(2), torch.tensor([-1, 0]), "do not fit"),
    ],
)
def test_bad_sets(images: torch.Tensor, labels: torch.Tensor | None, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ImageSet("bad", images, labels, ("a", "b"))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=8, max_size=60), st.floats(0.2, 0.8), st.integers(0, 99))
def test_holdout_splits_every_class(labels: list[int], fraction: float, seed: int) -> None:
    count = len(labels)
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1)
    data = ImageSet("x", images, torch.tensor(labels), tuple("abcd"))
    shares = [round(fraction * labels.count(label)) for label in set(labels)]
    if not 0 < sum(shares) < count:
        return
    kept, held = holdout(data, fraction, seed)
    assert sorted([*kept.images.flatten().tolist(), *held.images.flatten().tolist()]) == list(range(count))
    assert held.labels is not None
    for label in set(labels):
        assert (held.labels == label).sum() == round(fraction * labels.count(label))
    again = holdout(data, fraction, seed)
    assert torch.equal(again[1].images, held.images)


def test_holdout_by_seed_and_without_labels() -> None:
    data = ImageSet("x", torch.arange(200, dtype=torch.uint8).view(-1, 1, 1, 1))
    parts = [holdout(data, 0.1, seed)[1].images.flatten().tolist() for seed in range(3)]
    assert all(len(part) == 20 and part == sorted(part) for part in parts)
    assert len({tuple(part) for part in parts}) == 3
    for fraction in (0.0, 1.0):
        with pytest.raises(ValueError, match="between 0 and 1"):
            holdout(data, fraction)
    with pytest.raises(ValueError, match="too few"):
        holdout(data.subset(torch.arange(2)), 0.1)


def test_digits_are_scikit_learns() -> None:
    train, test = load("digits"), load("digits", "test")
    assert isinstance(train, ImageSet)
    assert isinstance(test, ImageSet)
    assert (len(train), len(test)) == (1347, 450)
    assert train.images.shape[1:] == (1, 8, 8)
    everything = torch.cat([train.images, test.images]).flatten(1)
    original = torch.from_numpy(load_digits().data * (255 / 16)).round().byte()
    assert sorted(map(tuple, everything.tolist())) == sorted(map(tuple, original.tolist()))
    assert train.labels is not None
    assert train.labels.bincount().min() > 120
    assert train.digest == load().digest
    cifar_like = load("digits", image_size=32, channels=3)
    assert isinstance(cifar_like, ImageSet)
    assert cifar_like.images.shape == (1347, 3, 32, 32)


@pytest.mark.parametrize(
    ("shape", "channels"), [((7, 5, 4, 3), 3), ((7, 5, 4), 1), ((7, 3, 5, 4), 3), ((7, 5, 4, 1), 1)]
)
def test_plain_npz(tmp_path: Path, shape: tuple[int, ...], channels: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    labels = np.array([0, 1, 2, 0, 1, 2, 3], np.uint8)
    np.savez(tmp_path / "own.npz", train_images=images, train_labels=labels, test_images=images[:2])
    data = load(f"npz:{tmp_path / 'own.npz'}")
    assert isinstance(data, ImageSet)
    assert data.images.shape == (7, channels, 5, 4)
    theirs = images if shape[1] == 3 else images.reshape(7, 5, 4, channels).transpose(0, 3, 1, 2)
    assert np.array_equal(data.images.numpy(), theirs)
    assert data.labels is not None
    assert data.labels.tolist() == labels.tolist()
    assert data.class_names == ("0", "1", "2", "3")
    test = load(f"npz:{tmp_path / 'own.npz'}", "test")
    assert test.labels is None
    assert len(test) == 2


@pytest.mark.parametrize(("codec", "columns"), [("xz", 1), ("png", 1), ("png", 3), ("webp", 2)])
def test_packed_npz(tmp_path: Path, codec: str, columns: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 6, 4, 3), dtype=np.uint8)
    arrays: dict[str, np.ndarray] = {"image_shape": np.array([6, 4, 3]), "codec": np.array(codec)}
    if codec == "xz":
        blob = lzma.compress(images.tobytes())
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
    assert isinstance(data, ImageSet)
    assert np.array_equal(data.images.permute(0, 2, 3, 1).numpy(), images)


def test_bad_npz(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a readable"):
        load(f"npz:{tmp_path / 'none.npz'}")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 not a zip")
    with pytest.raises(ValueError, match="not a readable"):
        load(f"npz:{tmp_path / 'broken.npz'}")
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    with pytest.raises(ValueError, match="it has the arrays weights"):
        load(f"npz:{tmp_path / 'other.npz'}")
    np.savez(tmp_path / "floats.npz", train_images=np.zeros((2, 4, 4, 3)))
    with pytest.raises(ValueError, match="uint8"):
        load(f"npz:{tmp_path / 'floats.npz'}")
    np.savez(tmp_path / "short.npz", train_images=np.zeros((2, 4, 4, 3), np.uint8), train_labels=np.zeros(3, int))
    with pytest.raises(ValueError, match="one per image"):
        load(f"npz:{tmp_path / 'short.npz'}")
    with pytest.raises(ValueError, match="no 'test' images; it has train; it is to have 'test_images'"):
        load(f"npz:{tmp_path / 'floats.npz'}", "test")
    np.savez(tmp_path / "ok.npz", images=np.zeros((2, 4, 4), np.uint8), labels=np.arange(2))
    wanted = r"it has the arrays images, labels; it is to have 'test_images' \(uint8; .* and 'test_labels' \(whole"
    with pytest.raises(ValueError, match=wanted):
        load(f"npz:{tmp_path / 'ok.npz'}", "test")
    with pytest.raises(ValueError, match=r"no 'extra' images; it has train\.$"):  # of which an .npz has none
        load(f"npz:{tmp_path / 'floats.npz'}", "extra")


@pytest.mark.parametrize(
    ("label", "shown"),
    [("cat", "'cat'"), (0.5, "0.5"), (-0.25, "-0.25"), (np.nan, "nan"), (np.inf, "inf"), (1j, "1j"), (b"a", "b'a'")],
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_labels_of_an_npz_are_whole_numbers(tmp_path: Path, label: object, shown: str, split: str) -> None:
    """Also those of the other split, which are counted for the names of the classes."""
    images = np.zeros((2, 4, 4), np.uint8)
    arrays = {
        f"{s}_{what}": values for s in ("train", "test") for what, values in (("images", images), ("labels", [0, 1]))
    }
    np.savez(tmp_path / "own.npz", **arrays | {f"{split}_labels": np.array([label, label])})
    with pytest.raises(ValueError, match=rf"own\.npz: labels are whole numbers, not {re.escape(shown)}\.$"):
        load(f"npz:{tmp_path / 'own.npz'}")


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.int16, bool])
def test_whole_labels_of_any_kind(tmp_path: Path, dtype: type) -> None:
    np.savez(tmp_path / "own.npz", train_images=np.zeros((3, 4, 4), np.uint8), train_labels=np.array([0, 1, 1], dtype))
    data = load(f"npz:{tmp_path / 'own.npz'}")
    assert data.labels is not None
    assert data.labels.dtype == torch.int64
    assert data.labels.tolist() == [0, 1, 1]
    assert data.class_names == ("0", "1")


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
    assert isinstance(train, ImageSet)
    assert train.images.shape == (9, 1, 28, 28)
    assert len(test) == 4
    assert np.array_equal(train.images[:, 0].numpy(), images)
    assert train.class_names[9] == "Ankle boot"
    np.savez(tmp_path / "fashion_mnist.npz", train_images=images[:2], train_labels=np.zeros(2, np.uint8))
    assert len(load("fashion-mnist", "train", tmp_path)) == 2  # an .npz of that name comes first


def test_missing_data_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cifar10", "cifar100", "svhn", "stl10", "fashion-mnist"):
        with pytest.raises(ValueError, match=f"{name} is not in .*download"):
            load(name, root=tmp_path)
    with pytest.raises(ValueError, match="unpack its archives"):
        load("imagenet", root=tmp_path)
    with pytest.raises(ValueError, match="did you mean cifar10"):
        load("cifra10", root=tmp_path)
    with pytest.raises(ValueError, match="Known names: digits"):
        load("qqqq", root=tmp_path)
    with pytest.raises(ValueError, match="prefix is"):
        load("zip:there")
    with pytest.raises(ValueError, match="splits train, test"):
        load("digits", "validation")
    with pytest.raises(ValueError, match=r"cifar10h\.npz is missing"):
        cifar10h(tmp_path)
    monkeypatch.setenv("BYOV_DATA", str(tmp_path / "there"))
    assert data_root() == tmp_path / "there"
    assert data_root("here") == Path("here")
