"""What a function makes on a GPU, as a CUDA graph: launched as a whole, and written to the same memory every time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Generator

from byov.posterior.module import several_processes

T = TypeVar("T")


class Captured(Generic[T]):
    """Calls of `make`, which draws from `generator` (or the global one) and never has the host wait for the device."""

    def __init__(self, make: Callable[[], T], generator: Generator | None, stream: torch.cuda.Stream) -> None:
        self.generator, self._device = generator, stream.device
        self._graph = torch.cuda.CUDAGraph()
        if generator is not None:
            self._graph.register_generator_state(generator)
        # What other threads do meanwhile, such as a loader's that pins memory, is not this graph's.
        with _own_workspace(), torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"):
            self._made = make()
        # To begin a capture writes, on that stream, where the random numbers begin; so does a replay, on this one.
        torch.cuda.current_stream(self._device).wait_stream(stream)

    @staticmethod
    def possible(device: torch.device, generator: Generator | None) -> bool:
        """With all of the noise from this GPU.

        Only in the main thread: to find out whether a pass waits for the device, waiting is forbidden to all threads.
        """
        if device.type != "cuda" or threading.current_thread() is not threading.main_thread():
            return False
        if generator is None:
            return not several_processes()  # which draw from generators that are made anew for each pass
        return generator.device.type == "cuda" and generator.device.index in (None, device.index)

    def __call__(self) -> T:
        """What `make` gives, in the memory of the call before."""
        with torch.cuda.device(self._device):
            self._graph.replay()
        return self._made


@contextmanager
def _own_workspace() -> Iterator[None]:
    """Inside, cuBLAS takes new memory to work in: a graph's own, where it begins inside, and nobody else's after it.

    cuBLAS keeps one for each stream, and whoever captures a graph may clear them all, as torch.compile does. A graph
    that works in one that is gone writes into memory of others, or ends the process.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
