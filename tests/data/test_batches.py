"""Batches: an order that is a pure function of seed and epoch, resumed to the bit; files read by workers."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from byov.data import Batches, FolderSet, ImageSet, epoch_order


def numbered(count: int) -> ImageSet:
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1)
    return ImageSet("numbers", images, torch.arange(count), tuple(map(str, range(count))))


def test_order_is_a_permutation_of_its_seed_and_epoch() -> None:
    orders = {(s, e): tuple(epoch_order(50, s, e).tolist()) for s in range(4) for e in range(4)}
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert len(set(orders.values())) == 16
    assert tuple(epoch_order(50, 2, 3).tolist()) == orders[2, 3]
    assert epoch_order(5, 0, 0, shuffle=False).tolist() == [0, 1, 2, 3, 4]


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 80), world=st.integers(1, 9), epoch=st.integers(0, 5), shuffle=st.booleans())
def test_ranks_share_evenly(size: int, world: int, epoch: int, shuffle: bool) -> None:
    even = [epoch_order(size, 1, epoch, rank, world, shuffle) for rank in range(world)]
    assert {len(part) for part in even} == {size // world}
    assert len(torch.cat(even).unique()) == size // world * world  # nothing twice
    every = [epoch_order(size, 1, epoch, rank, world, shuffle, even=False) for rank in range(world)]
    assert sorted(torch.cat(every).tolist()) == list(range(size))
    assert max(map(len, every)) - min(map(len, every)) <= 1


def test_first_places_are_uniform() -> None:
    """Over 4,000 epochs each of eight images comes first about 500 times (five standard deviations)."""
    firsts = torch.tensor([int(epoch_order(8, 0, epoch)[0]) for epoch in range(4000)])
    counts = firsts.bincount(minlength=8)
    assert (counts - 500).abs().max() < 5 * (4000 / 8 * 7 / 8) ** 0.5


@settings(max_examples=30, deadline=None)
@given(stop=st.integers(0, 15), world=st.integers(1, 2), drop_last=st.booleans())
def test_resuming_goes_on_to_the_bit(stop: int, world: int, drop_last: bool) -> None:
    """Stop after any batch, carry two numbers over, and the rest is what an uninterrupted run sees."""

    def fresh() -> Batches:
        return Batches(numbered(22), 3, seed=5, drop_last=drop_last, rank=world - 1, world=world)

    def run(batches: Batches, count: int) -> list[list[int]]:
        seen: list[list[int]] = []
        while len(seen) < count:
            for batch in batches:
                seen.append(batch.images.flatten().tolist())
                if len(seen) == count:
                    break
        return seen

    whole = run(fresh(), 20)
    first = fresh()
    begun = run(first, stop)
    second = fresh()
    second.state = first.state
    assert begun + run(second, 20 - stop) == whole


def test_state_counts_epochs_and_batches() -> None:
    batches = Batches(numbered(10), 4)
    assert len(batches) == 2
    assert [batches.state, *(batches.state for _ in batches)] == [(0, 0), (0, 1), (0, 2)]
    assert batches.state == (1, 0)
    batches.state = (3, 1)
    assert len(list(batches)) == 1
    assert batches.state == (4, 0)
    for bad in ((-1, 0), (0, 3), (0, -1)):
        with pytest.raises(ValueError, match="not a place"):
            batches.state = bad


def test_last_batch_and_labels() -> None:
    batches = Batches(numbered(10), 4, drop_last=False, shuffle=False, device="cpu")
    assert len(batches) == 3
    for size, (images, labels, indices) in zip((4, 4, 2), batches, strict=True):
        assert len(images) == size
        assert torch.equal(labels, indices)
        assert torch.equal(images.flatten().long(), indices)
    unlabelled = ImageSet("x", torch.zeros(3, 1, 2, 2, dtype=torch.uint8))
    assert next(iter(Batches(unlabelled, 2))).labels is None


@pytest.fixture
def pictures(tmp_path: Path) -> FolderSet:
    """300 files whose grey level is their number modulo 256, the first half of one class."""
    paths = [tmp_path / f"{i:03}.png" for i in range(300)]
    for i, path in enumerate(paths):
        Image.new("RGB", (4, 4), (i % 256,) * 3).save(path)
    labels = (torch.arange(300) >= 150).long()
    return FolderSet("pictures", tuple(map(str, paths)), labels, ("first", "second"), image_size=4)


@pytest.mark.parametrize("workers", [0, 2])
def test_reading_files_in_batches(pictures: FolderSet, workers: int) -> None:
    state = torch.random.get_rng_state()
    seen = list(Batches(pictures, 128, seed=1, drop_last=False, workers=workers))
    assert [len(b.images) for b in seen] == [128, 128, 44]
    for images, labels, indices in seen:
        assert torch.equal(labels, pictures.labels[indices])
        assert torch.equal(images[:, 0, 0, 0].long(), indices % 256)
    assert sorted(torch.cat([b.indices for b in seen]).tolist()) == list(range(300))
    assert torch.equal(state, torch.random.get_rng_state())  # the run's own random numbers are not used up


def test_broken_images_are_counted_and_left_out(pictures: FolderSet) -> None:
    """Three kinds of broken files among 300 are one per cent: fine. A fourth is too many, and is named."""
    whole = Path(pictures.paths[30]).read_bytes()
    for index, content in {10: b"", 20: b"no image at all", 30: whole[: len(whole) // 2]}.items():
        Path(pictures.paths[index]).write_bytes(content)
        assert isinstance(pictures[index], str)
    batches = Batches(pictures, 32, drop_last=False, workers=0)
    for _ in range(2):  # seen twice, counted once
        assert sum(len(batch.images) for batch in batches) == 297
    assert batches.unreadable.keys() == {10, 20, 30}
    said = batches.left_out()
    assert said.startswith("3 of the 300 images of pictures cannot be read and were left out: ")
    assert "010.png (cannot identify image file), " in said
    single = Batches(pictures, 1, shuffle=False, workers=0)  # a batch of broken images is skipped
    assert [int(batch.indices) for batch in single] == [i for i in range(300) if i not in (10, 20, 30)]
    assert single.state == (1, 0)
    Path(pictures.paths[40]).write_bytes(b"")
    with pytest.raises(ValueError, match=r"4 of the 300 images .* cannot be read, over 1%: .*010\.png"):
        list(Batches(pictures, 32, drop_last=False, workers=0))
    assert len(list(Batches(pictures, 1, drop_last=False, workers=0, tolerated=1.0))) == 296


def test_bad_batches() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Batches(numbered(4), 0)
    with pytest.raises(ValueError, match="2 images for each process, fewer than a batch of 3"):
        Batches(numbered(4), 3, world=2)
    with pytest.raises(ValueError, match="rank"):
        epoch_order(4, 0, 0, rank=2, world=2)
