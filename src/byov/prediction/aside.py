"""Weights made on a GPU beside a pass that it is still at.

Where one pass is recorded and a hundred draws of a last layer follow, the host has launched the pass long before the
device is through with it. What comes next, the noise of all those draws, is a hundred small kernels that depend on
nothing the pass does: on a stream of their own they need not wait for its end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import torch

from byov.prediction.tree import tensors_in

T = TypeVar("T")


@lru_cache
def _stream_of(device: torch.device) -> torch.cuda.Stream:
    """One for all: memory is kept by stream, and each new one would ask for its own."""
    return torch.cuda.Stream(device)


class Aside:
    """Makes tensors on a stream of its own: after what the current one has been given by now, beside what follows."""

    def __init__(self, device: torch.device) -> None:
        self._stream = _stream_of(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))

    def __call__(self, make: Callable[[], T]) -> T:
        """What `make` gives, tensors in any nesting; what the current stream is given from now on finds them made."""
        current = torch.cuda.current_stream(self._stream.device)
        with torch.cuda.stream(self._stream):
            made = make()
        current.wait_stream(self._stream)
        for tensor in tensors_in(made):
            tensor.record_stream(current)  # its memory is not to be taken before that stream is done with it
        return made
