"""A draw and its pass as one CUDA graph.

A network of a hundred small layers keeps a GPU waiting for the host, and a draw adds to what the host has to do. Where
every parameter is random all passes are alike but for the noise: three are made as they come, one is captured, and it
and the others are launched as a whole. Not where the device has more to do than the host: capturing would only cost
time.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import torch
from torch import Generator, Tensor, nn

from byov.posterior.module import BayesianModule
from byov.prediction.captured import Captured
from byov.prediction.draws import Draws
from byov.prediction.forward import Forward
from byov.prediction.inputs import Batch, device_of, named
from byov.prediction.look import kind_of
from byov.prediction.state import (
    attributes_of,
    holds_parameters,
    modules_of,
    place,
    random_state,
    same_state,
    set_torch_state,
    unchanged,
)

ENOUGH = 10
"""Draws from which capturing one pays: it takes the host about two passes."""

SLACK = 1.05
"""How much longer the device may take for a draw than the host and count as waiting for it."""


class Graphed:
    """The passes on batches of one shape under fresh draws; `capture` says whether there can be such a thing."""

    def __init__(self, draws: Draws, forward: Forward, stream: torch.cuda.Stream, modules: list[nn.Module]) -> None:
        self._kind, x = kind_of(forward.x), forward.x
        self._x: Batch = x.clone() if isinstance(x, Tensor) else {name: tensor.clone() for name, tensor in x.items()}
        self._modules = modules
        # Held, and not only to be compared: a tensor that is gone leaves its memory to others, and a graph reads it.
        self._attributes, self._places = attributes_of(modules), self._now()
        here = Forward(forward.model, self._x, forward.task, watch=False, handover=forward.handover)
        self._captured = Captured(lambda: here.one(draws.next()), draws.generator, stream)

    @staticmethod
    def suits(model: nn.Module, modules: list[nn.Module]) -> bool:
        """A model all on one GPU; every parameter random; and nobody who wants to see each pass.

        `modules` are those of the network.
        """
        device = device_of(model)
        if not isinstance(model, BayesianModule) or device.type != "cuda" or holds_parameters(modules):
            return False
        buffers = [buffer for module in modules for buffer in module._buffers.values() if buffer is not None]
        if any(tensor.device != device for tensor in (*model.q.parameters(), *buffers)):
            return False
        return all(map(_plain, modules))

    @classmethod
    def capture(cls, draws: Draws, forward: Forward) -> tuple[Tensor, Graphed | None]:
        """What the next draw predicts, made as it comes; and the graph of those after it, if such a pass can have one.

        It cannot where the host waits for a number, has random numbers of its own, or leaves a module changed.
        """
        with torch.cuda.device(device_of(forward.model)):
            modules, generator = modules_of(forward.model), draws.generator
            before, state = attributes_of(modules), random_state()
            drawn = None if generator is None else generator.get_state()
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            try:
                with torch.cuda.stream(stream), _no_waiting():
                    values = forward.one(draws.next())
            except RuntimeError:  # it waited, or it is wrong: then it will say so again
                torch.cuda.current_stream().wait_stream(stream)
                set_torch_state(state)
                if generator is not None and drawn is not None:
                    generator.set_state(drawn)
                return forward.one(draws.next()), None
            torch.cuda.current_stream().wait_stream(stream)
            same = unchanged(before, attributes_of(modules)) and same_state(state, random_state(device=False))
            if not same:
                return values, None
            try:
                return values, cls(draws, forward, stream, modules_of(forward.model))
            except RuntimeError:  # something in it cannot be captured; what comes is then as it was before
                return values, None

    def serves(self, generator: Generator | None) -> bool:
        """Whether it draws from this generator, and the modules still hold what it reads, where it reads it."""
        if self._captured.generator is not generator or self._places != self._now():
            return False
        return unchanged(self._attributes, attributes_of(self._modules))

    def _now(self) -> list[tuple[int, int]]:
        buffers = [buffer for module in self._modules for buffer in module._buffers.values() if buffer is not None]
        return [(id(buffer), place(buffer)) for buffer in buffers]

    def takes(self, x: Batch) -> bool:
        """Whether a batch is of the kind that was captured, in the present contexts."""
        return kind_of(x) == self._kind

    def fill(self, x: Batch) -> None:
        """Go on with another batch."""
        for tensor, new in zip(named(self._x).values(), named(x).values(), strict=True):
            tensor.copy_(new)

    def __call__(self) -> Tensor:
        """What the next draw predicts (1, N, …), in the memory of the one before."""
        return self._captured()


class Pace:
    """Whether the host or the device is the slow one, seen at the moments when the host begins a draw.

    While the host is, the device begins each draw when the host does, and both count the same time from one to the
    next. A device that counts more has not been waiting. The first draw of a call takes the host longer than others,
    and of a process much longer: in doubt the host is the slow one, which may cost a capture that does not pay.
    """

    def __init__(self, model: nn.Module) -> None:
        self._device = device_of(model)
        self._begun: list[tuple[float, torch.cuda.Event]] = []

    def begin(self) -> None:
        """The host begins a draw."""
        event = torch.cuda.Event(enable_timing=True)
        with torch.cuda.device(self._device):
            event.record()
        self._begun.append((perf_counter(), event))

    def host_is_slow(self) -> bool:
        """By the first of two draws that have begun; that the device has not come to its end yet is an answer, too."""
        (before, first), (after, last) = self._begun
        return last.query() and first.elapsed_time(last) < SLACK * 1000 * (after - before)


def _plain(module: nn.Module) -> bool:
    """Without hooks, and not compiled into a graph of its own: graphs do not nest."""
    if module._forward_hooks or module._forward_pre_hooks:
        return False
    compiled = module._compiled_call_impl
    if compiled is None:
        return True
    config = getattr(compiled, "get_compiler_config", None)
    return config is not None and not (config() or {}).get("triton.cudagraphs", True)


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
