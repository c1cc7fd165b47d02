"""One chunk of steps after another: on a GPU a chunk is one graph, because launching its kernels takes longer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from byov.train.regression.group import Group

Chunk = tuple[Tensor, Sequence[Sequence[Tensor]]]
"""y of every step; and for each group x and the noise of every step."""


def runner(groups: Sequence[Group], like: Chunk) -> Callable[[Chunk], None]:
    """A function that trains every group on a chunk of the size of `like`."""
    return _graph(groups, like) if like[0].is_cuda else partial(_loop, groups)


def _loop(groups: Sequence[Group], chunk: Chunk) -> None:
    """Each group in a thread of its own, and no other threads: a kernel takes microseconds.

    To share it between cores gains a third where they are idle; where one has to wait for its core, the step takes
    five to ten times as long.
    """
    threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(len(groups), initializer=_small_kernels) as pool:
            list(pool.map(partial(_steps, y=chunk[0]), groups, chunk[1]))
    finally:
        torch.set_num_threads(threads)  # new threads of this process take the last number that any thread has set


def _small_kernels() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # what the decay leaves of a dead unit's weights is slow to multiply, and nothing


def _steps(group: Group, tensors: Sequence[Tensor], y: Tensor) -> None:
    xs, *noise = (tensor.unbind() for tensor in tensors)
    for x, target, *draw in zip(xs, y.unbind(), *noise, strict=True):
        group.stack.step(x, target, draw)


def _graph(groups: Sequence[Group], like: Chunk) -> Callable[[Chunk], None]:
    """The steps of a chunk captured once and replayed on buffers that never move; each group is a branch of its own."""
    y, tensors = like[0].clone(), [[tensor.clone() for tensor in part] for part in like[1]]
    sides = [torch.cuda.Stream() for _ in groups]

    def branches(steps: int) -> None:
        main = torch.cuda.current_stream()
        for side in sides:  # before any of them is given work, so that none waits for another
            side.wait_stream(main)
        for side, group, part in zip(sides, groups, tensors, strict=True):
            with torch.cuda.stream(side):
                _steps(group, [tensor[:steps] for tensor in part], y[:steps])
        for side in sides:
            main.wait_stream(side)

    # cuBLAS and Adam make what they need in their first steps, which a graph must not hold; those steps are undone.
    before = [[tensor.clone() for tensor in group.stack.state()] for group in groups]
    branches(min(3, len(y)))
    for group, kept in zip(groups, before, strict=True):
        group.stack.restore(kept)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        branches(len(y))

    def replay(chunk: Chunk) -> None:
        y.copy_(chunk[0])
        for buffers, part in zip(tensors, chunk[1], strict=True):
            for buffer, tensor in zip(buffers, part, strict=True):
                buffer.copy_(tensor)
        graph.replay()

    return replay
