"""Batches in an order that can be resumed bit for bit.

The order of epoch e is a pure function of (seed, e). The position in the data is two integers, (epoch, position): no
random state is saved, and prefetching in a loader does not matter.
"""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader

from byov.data.datasets import FolderSet, ImageSet
from byov.data.printable import printable
from byov.data.tables import Rows

TOLERATED = 0.01  # fraction of images that may be unreadable before a run stops


class Batch(NamedTuple):
    """Images with their labels (or None) and their indices in the set."""

    images: Tensor
    labels: Tensor | None
    indices: Tensor


def epoch_order(
    size: int, seed: int, epoch: int, rank: int = 0, world: int = 1, shuffle: bool = True, even: bool = True
) -> Tensor:
    """Return the indices that one of `world` ranks sees in an epoch; a pure function of its arguments.

    Rank r takes every world-th index of the common permutation. `even` drops the last size mod world indices, so that
    all ranks have equally many; without it every index occurs exactly once across the ranks, as an evaluation needs.
    """
    if size < 1 or not 0 <= rank < world:
        raise ValueError(f"An order needs size > 0 and 0 ≤ rank < world, not size {size}, rank {rank}, world {world}.")
    if shuffle:
        # numpy's SeedSequence mixes (seed, epoch) well: seeding torch with seed + epoch would make the epochs of
        # seed + 1 a shifted copy of those of seed
        word = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)[0]
        order = torch.randperm(size, generator=torch.Generator().manual_seed(int(word >> np.uint64(1))))
    else:
        order = torch.arange(size)
    return order[: size // world * world if even else size][rank::world]


class Batches:
    """Iterate over the rest of the current epoch, then move to the start of the next one.

    `state` is (epoch, position). It is updated before a batch is yielded, so that a checkpoint written after the step
    on that batch resumes with the next one. Sets in memory are indexed on their own device; folders are read by
    `workers` processes. An image that cannot be read is left out of its batch and recorded in `unreadable`, with the
    reason. If more than the `tolerated` fraction is unreadable, a `ValueError` is raised.
    """

    def __init__(
        self,
        data: ImageSet | FolderSet | Rows,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        rank: int = 0,
        world: int = 1,
        workers: int | None = None,
        device: torch.device | str | None = None,
        tolerated: float = TOLERATED,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"A batch has at least one image, not {batch_size}.")
        self.data, self.batch_size, self.drop_last = data, batch_size, drop_last
        self.seed, self.shuffle, self.rank, self.world = seed, shuffle, rank, world
        self.workers = min(8, os.cpu_count() or 1) if workers is None else workers
        self.device = torch.device(device) if device is not None else None
        self.epoch, self.position = 0, 0
        self.tolerated = tolerated
        self.unreadable: dict[int, str] = {}
        if drop_last and len(self) == 0:
            per_rank = len(data) // world
            what = "rows" if isinstance(data, Rows) else "images"
            raise ValueError(
                f"{data.name} has {per_rank} {what} for each process, fewer than a batch of {batch_size}:"
                " choose a smaller one."
            )

    def __len__(self) -> int:
        """Return the number of batches in a full epoch."""
        images = len(self._order(0))
        return images // self.batch_size if self.drop_last else -(-images // self.batch_size)

    @property
    def state(self) -> tuple[int, int]:
        return self.epoch, self.position

    @state.setter
    def state(self, state: tuple[int, int]) -> None:
        epoch, position = state
        if epoch < 0 or not 0 <= position <= len(self):
            raise ValueError(f"({epoch}, {position}) is not a place in epochs of {len(self)} batches.")
        self.epoch, self.position = epoch, position

    def __iter__(self) -> Iterator[Batch]:
        order = self._order(self.epoch)
        if not isinstance(self.data, FolderSet):
            order = order.to(self.data.images.device)  # once per epoch: each copy from the host waits for the GPU
        parts = list(order.split(self.batch_size))[: len(self)][self.position :]
        for batch in self._streamed(parts) if isinstance(self.data, FolderSet) else self._stored(parts):
            self.position += 1
            if len(batch.indices):
                yield batch
        self.epoch, self.position = self.epoch + 1, 0

    def _order(self, epoch: int) -> Tensor:
        even = self.drop_last
        return epoch_order(len(self.data), self.seed, epoch, self.rank, self.world, self.shuffle, even)

    def _stored(self, parts: list[Tensor]) -> Iterator[Batch]:
        assert not isinstance(self.data, FolderSet)
        for indices in parts:
            labels = None if self.data.labels is None else self.data.labels[indices]
            yield self._place(Batch(self.data.images[indices], labels, indices))

    def _streamed(self, parts: list[Tensor]) -> Iterator[Batch]:
        assert isinstance(self.data, FolderSet)
        loader: DataLoader[Any] = DataLoader(
            self.data,
            batch_sampler=[part.tolist() for part in parts],
            num_workers=self.workers if parts else 0,
            collate_fn=_collate,
            pin_memory=self.device is not None and self.device.type == "cuda",
            generator=torch.Generator(),  # its own, so that the global random state is not touched
        )
        for part, (images, reasons) in zip(parts, loader, strict=True):
            self._note({int(index): why for index, why in zip(part, reasons, strict=True) if why})
            indices = part[[not why for why in reasons]]
            labels = None if self.data.labels is None else self.data.labels[indices]
            yield self._place(Batch(images, labels, indices))

    def _place(self, batch: Batch) -> Batch:
        if self.device is None:
            return batch
        moved = (None if part is None else part.to(self.device, non_blocking=True) for part in batch)
        return Batch(*moved)  # type: ignore[arg-type]

    def _note(self, unreadable: dict[int, str]) -> None:
        self.unreadable |= unreadable
        if len(self.unreadable) > self.tolerated * len(self.data):
            raise ValueError(self._unreadable_sentence(self.unreadable, f", over {self.tolerated:.0%}"))

    def left_out(self) -> str:
        """Describe the images left out so far by any process, or return "" if none; all processes must call this."""
        parts: list[Any] = [self.unreadable] * self.world
        if self.world > 1:
            dist.all_gather_object(parts, self.unreadable)
        found = {index: why for part in parts for index, why in part.items()}
        return self._unreadable_sentence(found, " and were left out") if found else ""

    def _unreadable_sentence(self, unreadable: dict[int, str], what: str) -> str:
        assert isinstance(self.data, FolderSet)
        count = f"{len(unreadable)} of the {len(self.data)} images of {self.data.name}"
        some = ", ".join(f"{printable(self.data.paths[i])} ({unreadable[i]})" for i in sorted(unreadable)[:3])
        return f"{count} cannot be read{what}: {some}{' …' if len(unreadable) > 3 else ''}."


def _collate(items: list[Tensor | str]) -> tuple[Tensor, list[str]]:
    """Stack the images that could be read, and return for each item why it could not be read, or ""."""
    found = [image for image in items if isinstance(image, Tensor)]
    images = torch.stack(found) if found else torch.empty(0, dtype=torch.uint8)
    return images, [item if isinstance(item, str) else "" for item in items]
