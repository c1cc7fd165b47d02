"""A draw and its pass as one CUDA graph.

A network of a hundred small layers keeps a GPU waiting for the host, and a draw adds to what the host has to do. Where
every parameter is random all passes are alike but for the noise: two are made as they come, one is captured, and the
others are launched as a whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor, nn

from byov.posterior.module import BayesianModule, several_processes
from byov.prediction.draws import Draws
from byov.prediction.forward import Forward
from byov.prediction.inputs import Batch, device_of
from byov.prediction.state import attributes_of, modules_of, random_state, same_state, unchanged

ENOUGH = 8
"""Draws from which capturing one pays: it takes the host about two passes."""


class Graphed:
    """The passes on batches of one shape under fresh draws; `capture` says whether there can be such a thing."""

    def __init__(self, draws: Draws, forward: Forward) -> None:
        self._signature = _signature(forward.x)
        x = forward.x
        self._x: Batch = x.clone() if isinstance(x, Tensor) else {name: tensor.clone() for name, tensor in x.items()}
        self._graph = torch.cuda.CUDAGraph()
        if draws.generator is not None:
            self._graph.register_generator_state(draws.generator)
        here = Forward(forward.model, self._x, forward.task, watch=False)
        # What other threads do meanwhile, such as a loader's that pins memory, is not this graph's.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._values = here.one(draws.next())

    @staticmethod
    def suits(model: nn.Module, generator: Generator | None) -> bool:
        """On a GPU, all of the noise from there; every parameter random; and nobody who wants to see each pass."""
        if not isinstance(model, BayesianModule) or device_of(model).type != "cuda":
            return False
        if several_processes() if generator is None else generator.device.type != "cuda":
            return False  # several processes draw from generators that are made anew for each pass
        hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.net.modules())
        return not hooked and next(model.net.parameters(), None) is None

    @classmethod
    def capture(cls, draws: Draws, forward: Forward) -> tuple[Tensor, Graphed | None]:
        """What the next draw predicts, made as it comes; and the graph of those after it, if such a pass can have one.

        It cannot where the host waits for a number, has random numbers of its own, or leaves a module changed.
        """
        weights, modules = draws.next(), modules_of(forward.model)
        before, state = attributes_of(modules), random_state(device=False)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream), _no_waiting():
                values = forward.one(weights)
        except RuntimeError:  # it waited, or it is wrong: then it will say so again
            torch.cuda.current_stream().wait_stream(stream)
            return forward.one(weights), None
        torch.cuda.current_stream().wait_stream(stream)
        same = unchanged(before, attributes_of(modules)) and same_state(state, random_state(device=False))
        if not same:
            return values, None
        try:
            return values, cls(draws, forward)
        except RuntimeError:  # something in it cannot be captured; what comes is then as it was before
            return values, None

    def takes(self, x: Batch) -> bool:
        """Whether a batch has the shape that was captured."""
        return _signature(x) == self._signature

    def fill(self, x: Batch) -> None:
        """Go on with another batch."""
        for tensor, new in zip(_named(self._x).values(), _named(x).values(), strict=True):
            tensor.copy_(new)

    def __call__(self) -> Tensor:
        """What the next draw predicts (1, N, …), in the memory of the one before."""
        self._graph.replay()
        return self._values


def _named(x: Batch) -> Mapping[str, Tensor]:
    return {"": x} if isinstance(x, Tensor) else x


def _signature(x: Batch) -> list[tuple[Any, ...]]:
    return [(name, t.shape, t.stride(), t.dtype) for name, t in _named(x).items()]


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Inside, an operation that makes the host wait for the device is an error: a failed capture would be worse."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
