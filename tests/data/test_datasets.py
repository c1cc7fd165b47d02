"""Sets of images in memory and in folders: contents, digests, resizing, holding out."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from byov.data import FolderSet, ImageSet, holdout


def some_images(count: int = 6, channels: int = 3, side: int = 5) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, side, side), dtype=torch.uint8, generator=g)


def numbered(count: int, labels: list[int] | None = None) -> ImageSet:
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1)
    return ImageSet("x", images, None if labels is None else torch.tensor(labels), tuple("abcd"))


def test_mean_and_std_are_the_pixels() -> None:
    data = ImageSet("x", some_images(5000))
    pixels = data.images.double() / 255
    assert data.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-12)
    assert data.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-12)
    assert ImageSet("grey", torch.full((2, 1, 3, 3), 7, dtype=torch.uint8)).std == (1.0,)


def test_digest_tells_contents_apart() -> None:
    images, labels, names = some_images(), torch.arange(6), tuple("abcdef")
    data = ImageSet("x", images, labels, names)
    content = repr((6, 3, 5, 5)).encode() + images.numpy().tobytes() + labels.numpy().tobytes()
    assert data.digest == hashlib.sha256(content).hexdigest()[:12]
    assert ImageSet("y", images.clone(), labels, names).digest == data.digest
    other = images.clone()
    other[5, 2, 4, 4] += 1
    others = [ImageSet("x", other, labels, names), ImageSet("x", images, labels.flip(0), names)]
    assert len({each.digest for each in (data, *others, data.subset(torch.tensor([0, 1])))}) == 4


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
    colours = some_images(3)
    grey = ImageSet("x", colours).resized(channels=1).images[:, 0]
    expected = 0.299 * colours[:, 0] + 0.587 * colours[:, 1] + 0.114 * colours[:, 2]
    assert torch.equal(grey, expected.round().byte())
    with pytest.raises(ValueError, match="cannot become"):
        data.resized(channels=2)


@pytest.mark.parametrize(
    ("images", "labels", "sentence"),
    [
        (torch.rand(2, 3, 4, 4), None, "uint8"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), None, "N, C, H, W"),
        (torch.zeros(0, 1, 4, 4, dtype=torch.uint8), None, "none of them 0"),
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
    shares = {label: round(fraction * labels.count(label)) for label in set(labels)}
    if not 0 < sum(shares.values()) < len(labels):
        return
    data = numbered(len(labels), labels)
    kept, held = holdout(data, fraction, seed)
    assert sorted([*kept.images.flatten().tolist(), *held.images.flatten().tolist()]) == list(range(len(labels)))
    assert held.labels is not None
    assert {label: int((held.labels == label).sum()) for label in shares} == shares
    assert torch.equal(holdout(data, fraction, seed)[1].images, held.images)


def test_holdout_by_seed_and_without_labels() -> None:
    data = numbered(200)
    parts = [holdout(data, 0.1, seed)[1].images.flatten().tolist() for seed in range(3)]
    assert all(len(part) == 20 and part == sorted(part) for part in parts)
    assert len({tuple(part) for part in parts}) == 3
    for fraction in (0.0, 1.0):
        with pytest.raises(ValueError, match="between 0 and 1"):
            holdout(data, fraction)
    with pytest.raises(ValueError, match="too few"):
        holdout(data.subset(torch.arange(2)), 0.1)


def test_holding_out_a_part_of_a_folder(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(12)]
    for path in paths:
        path.write_bytes(b"any")
    data = FolderSet("x", tuple(map(str, paths)), torch.tensor([0] * 7 + [1] * 5), ("cat", "dog"))
    kept, held = holdout(data, 0.4)
    assert held.labels is not None
    assert held.labels.tolist() == [0, 0, 0, 1, 1]
    assert sorted(kept.paths + held.paths) == sorted(data.paths)
    assert kept.digest != data.digest


@pytest.mark.parametrize("size", [(40, 20), (20, 40), (33, 20), (5, 7), (1, 90)])
def test_the_central_square_of_a_file_is_kept(tmp_path: Path, size: tuple[int, int]) -> None:
    """A horizontal and a vertical ramp: the crop's centre shows the picture's centre."""
    width, height = size
    ramp = np.zeros((height, width, 3), np.uint8)
    ramp[..., 0] = np.linspace(0, 255, width)[None, :]
    ramp[..., 1] = np.linspace(0, 255, height)[:, None]
    Image.fromarray(ramp).save(tmp_path / "0.png")
    image = FolderSet("x", (str(tmp_path / "0.png"),), image_size=20)[0]
    assert image is not None
    assert image.shape == (3, 20, 20)
    if min(size) > 1:
        assert (image[:2].float().mean((1, 2)) - 127.5).abs().max() < 6
