"""The next draw, made on a GPU while it is still at the pass before.

To make a draw the device reads and writes every weight a few times, which a pass over a large batch leaves room for. So
draws are made on a stream of their own and at two places in turn: while a pass reads the one, the next draw is written
to the other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Generator, Tensor

from byov.posterior.module import BayesianModule, several_processes
from byov.prediction.steady import Steady


class Ahead:
    """One draw after the other, each made as soon as its place is free."""

    def __init__(self, model: BayesianModule, generator: Generator | None, steady: Steady) -> None:
        self._model, self._generator = model, generator
        self._device = steady.flat[0].device
        self._places = [steady, steady.beside()]
        self._stream = torch.cuda.Stream(self._device)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        self._passed = [self._now()]
        """When the device is through with the passes under the last two draws."""

    @staticmethod
    def suits(generator: Generator | None) -> bool:
        """Where the noise is the device's own."""
        return not several_processes() if generator is None else generator.device.type == "cuda"

    def next(self) -> tuple[Callable[[], dict[str, Tensor]], list[Tensor]]:
        """How to make the next draw, also again, and where its weights lie. The pass before has been launched."""
        self._places.reverse()
        self._passed = [*self._passed[-1:], self._now()]
        waiting, steady = [self._passed[0]], self._places[0]
        with torch.cuda.stream(self._stream):
            noise = self._model.noise(self._generator)  # in memory of this stream, which no pass reads

        def make() -> dict[str, Tensor]:
            self._stream.wait_event(waiting.pop() if waiting else self._now())
            with torch.cuda.stream(self._stream):
                tensors = steady(noise)
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
            return tensors

        return make, steady.flat

    def _now(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event
