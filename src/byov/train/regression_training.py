"""Train the networks of every split and family of a table together, in chunks of steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import ceil, isfinite
from typing import TypeVar

import torch
from torch import Tensor

from byov.train import Diverged
from byov.train.regression_networks import Data, Job, Normed, Plain, Split, Stack, minibatches, normed

CHUNK = 128
"""About how many steps' minibatches and noise are drawn ahead; on a GPU they are one graph."""

LONG = 512
"""The most: an epoch of more steps than this is cut into chunks."""

Chunk = tuple[Tensor, Sequence[Sequence[Tensor]]]
"""y of every step; and for each stack x and the noise of every step."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Settings:
    """Appendix D.7 of the patching paper: one hidden layer, Adam at its defaults, L2 on every variational parameter."""

    hidden: int = 50
    epochs: int = 4000
    batch: int = 100
    """At most this many rows a step: an epoch is cut into ⌈n/batch⌉ minibatches of equal size."""
    lr: float = 1e-3
    weight_decay: float | tuple[float, ...] = 0.01
    """λ, as torch's Adam has it. Of several, each split and family gets its own, by a held-out part of its rows."""
    held: float = 0.2
    """The share of a split's training rows that λ is chosen on."""
    trial: float = 0.25
    """The share of the epochs that every λ is tried for."""
    gamma: float = 0.2

    @property
    def grid(self) -> tuple[float, ...]:
        return self.weight_decay if isinstance(self.weight_decay, tuple) else (self.weight_decay,)

    def __post_init__(self) -> None:
        sizes = self.hidden, self.epochs, self.batch
        if min(sizes) < 1:
            raise ValueError(f"hidden, epochs and batch are at least 1, not {', '.join(map(str, sizes))}.")
        if not (isfinite(self.lr) and self.lr > 0 and self.grid and all(isfinite(d) and d >= 0 for d in self.grid)):
            raise ValueError(f"lr is above 0 and weight_decay at least 0, not {self.lr} and {self.weight_decay}.")
        if not (0 < self.held < 1 and 0 < self.trial <= 1):
            raise ValueError(f"held and trial are shares, above 0 and at most 1, not {self.held} and {self.trial}.")

    def cut(self, rows: int) -> tuple[int, int]:
        """Return an epoch's minibatches and the rows in each; the few rows left over sit the epoch out."""
        steps = ceil(rows / self.batch)
        return steps, rows // steps


def train(splits: Sequence[Data], jobs: Mapping[Key, Job], settings: Settings) -> dict[Key, tuple[Split, ...]]:
    """Train every job on every split; splits whose epochs are cut alike are trained together."""
    alike: dict[tuple[int, int], list[int]] = {}
    for i, split in enumerate(splits):
        alike.setdefault(settings.cut(len(split.x)), []).append(i)
    shapes: dict[int, dict[Key, Job]] = {}  # as few stacks as there are shapes of networks
    for key, job in jobs.items():
        shapes.setdefault(job.family.k if normed(job.family) else 0, {})[key] = job  # type: ignore[attr-defined]
    done: dict[Key, dict[int, Split]] = {key: {} for key in jobs}
    for some in alike.values():
        data = [splits[i] for i in some]
        stacks = []
        for k, own in shapes.items():
            here = [Job(job.family, [job.decay[i] for i in some]) for job in own.values()]
            kind = Normed if k else Plain
            stacks.append(kind(data, here, settings.hidden, settings.gamma, settings.lr))
        _run(stacks, data, settings)
        for stack, own in zip(stacks, shapes.values(), strict=True):
            for key, parts in zip(own, stack.result(), strict=True):
                done[key] |= dict(zip(some, parts, strict=True))
    for key, found in done.items():
        if not all(part.first.isfinite().all() and part.second.isfinite().all() for part in found.values()):
            raise Diverged(f"The weights of {jobs[key].family} became infinite: try a smaller learning rate.")
    return {key: tuple(found[i] for i in range(len(splits))) for key, found in done.items()}


def _run(stacks: Sequence[Stack], splits: Sequence[Data], settings: Settings) -> None:
    """Run all epochs, a chunk at a time."""
    order = [split.generator(0) for split in splits]
    steps, size = settings.cut(len(splits[0].x))
    epochs = next(e for e in range(max(1, CHUNK // steps), 0, -1) if settings.epochs % e == 0)
    length = CHUNK if steps > LONG else epochs * steps
    runners: dict[int, Callable[[Chunk], None]] = {}
    for _ in range(settings.epochs // epochs):
        xs, ys = minibatches(splits, order, epochs, steps, size)
        for x, y in zip(xs.split(length), ys.split(length), strict=True):
            if len(y) not in runners:
                runners[len(y)] = Graph(stacks) if y.is_cuda else partial(run_in_threads, stacks)
            runners[len(y)]((y, [stack.chunk(x) for stack in stacks]))


def run_in_threads(stacks: Sequence[Stack], chunk: Chunk) -> None:
    """Run a chunk on the CPU: each stack in a thread of its own, and no other threads, for a kernel takes microseconds.

    To share it between cores gains a third where they are idle; where one has to wait for its core, the step takes
    five to ten times as long.
    """

    def small_kernels() -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)  # what decay leaves of a dead unit's weights is slow to multiply, and nothing

    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(len(stacks), initializer=small_kernels) as pool:
            list(pool.map(lambda stack, tensors: stack.steps(chunk[0], tensors), stacks, chunk[1]))
    finally:
        torch.set_num_threads(threads)  # new threads of this process take the last number that any thread has set


class Graph:
    """Run chunks of one length on a GPU, as one graph: to launch their kernels takes longer than to run them.

    The first chunk is launched step by step, because cuBLAS and Adam make what they need in their first steps, which a
    graph must not hold. The second is captured, on buffers that never move; each stack is a branch of its own.
    """

    def __init__(self, stacks: Sequence[Stack]) -> None:
        self.stacks, self.sides = stacks, [torch.cuda.Stream() for _ in stacks]
        self.chunk: Chunk | None = None
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, chunk: Chunk) -> None:
        if self.chunk is None:
            self.chunk = chunk
            self._branches()
            return
        for buffer, tensor in zip(_tensors(self.chunk), _tensors(chunk), strict=True):
            buffer.copy_(tensor)
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._branches()
        self.graph.replay()

    def _branches(self) -> None:
        assert self.chunk is not None
        main = torch.cuda.current_stream()
        for side in self.sides:  # before any of them is given work, so that none waits for another
            side.wait_stream(main)
        for side, stack, tensors in zip(self.sides, self.stacks, self.chunk[1], strict=True):
            with torch.cuda.stream(side):
                stack.steps(self.chunk[0], tensors)
        for side in self.sides:
            main.wait_stream(side)


def _tensors(chunk: Chunk) -> list[Tensor]:
    return [chunk[0], *(tensor for tensors in chunk[1] for tensor in tensors)]
