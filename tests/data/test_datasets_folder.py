"""Folders of images, read by worker processes; broken files are counted and left out."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from byov.data import Batches, FolderSet, holdout, load


def write(path: Path, value: int, size: tuple[int, int] = (12, 12), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value,) * 3).save(path)


def folder(path: Path, split: str = "train", **options: int) -> FolderSet:
    data = load(f"folder:{path}", split, **options)  # type: ignore[arg-type]
    assert isinstance(data, FolderSet)
    return data


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """Two classes, seven and five images, whose grey level is their number."""
    for i in range(7):
        write(tmp_path / "cat" / f"{i}.png", i)
    for i in range(5):
        write(tmp_path / "dog" / "deep" / f"{i}.png", 100 + i)
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_class_folders(classes: Path) -> None:
    data = folder(classes, image_size=8)
    assert data.class_names == ("cat", "dog")
    assert data.labels is not None
    assert data.labels.tolist() == [0] * 7 + [1] * 5
    image = data[8]
    assert image is not None
    assert image.shape == (3, 8, 8)
    assert image.unique().tolist() == [101]
    assert len(data.mean) == 3
    assert len(data.digest) == 12
    grey = folder(classes, image_size=8, channels=1)
    assert grey[8] is not None
    assert grey[8].shape == (1, 8, 8)
    assert len(grey.mean) == 1


def test_flat_folders_have_no_labels(tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / f"{i}.jpg", i)
    data = folder(tmp_path)
    assert data.labels is None
    assert len(data) == 3
    assert data.image_size == 224
    write(tmp_path / "class" / "0.png", 0)
    with pytest.raises(ValueError, match="both beside and inside"):
        folder(tmp_path)


def test_splits(tmp_path: Path) -> None:
    write(tmp_path / "train" / "a" / "0.png", 0)
    write(tmp_path / "val" / "a" / "0.png", 1)
    write(tmp_path / "val" / "b" / "0.png", 1)
    assert len(folder(tmp_path)) == 1
    assert len(folder(tmp_path, "test")) == 2
    with pytest.raises(ValueError, match="splits test and train, not 'extra'"):
        folder(tmp_path, "extra")
    imagenet = load("imagenet", "test", tmp_path)
    assert isinstance(imagenet, FolderSet)
    assert imagenet.crop == 0.875
    assert imagenet.name == "imagenet"
    with pytest.raises(ValueError, match="hold a part"):
        folder(tmp_path / "val", "test")
    (tmp_path / "void").mkdir()
    with pytest.raises(ValueError, match="no images"):
        folder(tmp_path / "void")
    with pytest.raises(ValueError, match="not a folder"):
        folder(tmp_path / "absent")


@pytest.mark.parametrize("size", [(40, 20), (20, 40), (33, 20), (5, 7), (1, 90)])
def test_the_central_square_is_kept(tmp_path: Path, size: tuple[int, int]) -> None:
    """A horizontal and a vertical ramp: the crop's centre shows the picture's centre."""
    width, height = size
    ramp = np.zeros((height, width, 3), np.uint8)
    ramp[..., 0] = np.linspace(0, 255, width)[None, :]
    ramp[..., 1] = np.linspace(0, 255, height)[:, None]
    Image.fromarray(ramp).save(tmp_path / "0.png")
    image = folder(tmp_path, image_size=20)[0]
    assert image is not None
    assert image.shape == (3, 20, 20)
    if min(size) > 1:
        means = image[:2].float().mean((1, 2))
        assert (means - 127.5).abs().max() < 6


def test_reading_in_batches_with_workers(classes: Path) -> None:
    data = folder(classes, image_size=8)
    state = torch.random.get_rng_state()
    for workers in (0, 2):
        batches = Batches(data, 5, seed=1, drop_last=False, workers=workers)
        seen = list(batches)
        assert [len(b.images) for b in seen] == [5, 5, 2]
        for images, labels, indices in seen:
            assert labels is not None
            assert data.labels is not None
            assert torch.equal(labels, data.labels[indices])
            values = torch.where(labels == 0, indices, indices - 7 + 100)
            assert torch.equal(images[:, 0, 0, 0].long(), values)
        assert sorted(torch.cat([b.indices for b in seen]).tolist()) == list(range(12))
    assert torch.equal(state, torch.random.get_rng_state())  # the run's own random numbers are not used up


def test_broken_images_are_counted_and_left_out(tmp_path: Path) -> None:
    """Three kinds of broken files among 300 are one per cent: fine. A fourth is too many, and is named."""
    for i in range(300):
        write(tmp_path / f"{i:03}.png", i % 256, (4, 4))
    (tmp_path / "010.png").write_bytes(b"")
    (tmp_path / "020.png").write_bytes(b"no image at all")
    whole = (tmp_path / "030.png").read_bytes()
    (tmp_path / "030.png").write_bytes(whole[: len(whole) // 2])
    data = folder(tmp_path, image_size=4)
    assert data[10] is None
    assert data[20] is None
    assert data[30] is None
    batches = Batches(data, 32, drop_last=False, workers=0)
    for _ in range(2):  # seen twice, counted once
        assert sum(len(batch.images) for batch in batches) == 297
    assert batches.unreadable == {10, 20, 30}
    (tmp_path / "040.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"4 of 300 images .* \(over 1 %\).*010\.png"):
        list(Batches(data, 32, drop_last=False, workers=0))


def test_a_batch_of_broken_images_is_skipped(tmp_path: Path) -> None:
    for i in range(100):
        write(tmp_path / f"{i:03}.png", i, (4, 4))
    (tmp_path / "000.png").write_bytes(b"")
    batches = Batches(folder(tmp_path, image_size=4), 1, shuffle=False, workers=0)
    assert [int(batch.indices) for batch in batches] == list(range(1, 100))
    assert batches.state == (1, 0)


def test_holding_out_a_part_of_a_folder(classes: Path) -> None:
    data = folder(classes)
    kept, held = holdout(data, 0.4)
    assert held.labels is not None
    assert held.labels.tolist() == [0, 0, 0, 1, 1]
    assert set(kept.paths) | set(held.paths) == set(data.paths)
    assert not set(kept.paths) & set(held.paths)
    assert kept.digest != data.digest
