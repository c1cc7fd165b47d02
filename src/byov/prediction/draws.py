"""The weights of a draw, made apart from the pass that uses them: so that many batches can share one draw.

On CPU a draw of eleven million weights costs 22 ms, whatever the batch. That is a ninth of a pass of ResNet-18 at batch
32, and next to nothing of the passes of all the batches that one draw serves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Generator, Tensor

from byov.posterior.family import Noise
from byov.posterior.module import BayesianModule, several_processes
from byov.prediction.fused import Fused
from byov.prediction.recycle import Recycle
from byov.prediction.reuse import Recording, again, record
from byov.prediction.state import modules_of
from byov.prediction.steady import Steady


class Weights:
    """The weights of a draw by name, or of several, stacked. Made when first asked for.

    And made again where a network has written into them, as one that clips its weights does: the next batch is to find
    them as they were drawn. Views count with their base, so it is bases that are looked at: `roots`, where it is known
    that all the weights lie in them.
    """

    def __init__(self, make: Callable[[], dict[str, Tensor]], roots: list[Tensor] | None = None) -> None:
        self._make, self._known_roots = make, roots
        self._tensors: dict[str, Tensor] = {}
        self._roots: list[Tensor] = []
        self._versions: list[int] | None = None

    def __call__(self) -> dict[str, Tensor]:
        if self._versions is None or self._versions != self._now():
            self._tensors = self._make()
            self._roots = _roots(self._tensors) if self._known_roots is None else self._known_roots
            self._versions = self._now()
        return self._tensors

    def _now(self) -> list[int]:
        return [0 if root.is_inference() else root._version for root in self._roots]


def _roots(tensors: dict[str, Tensor]) -> list[Tensor]:
    bases = (tensor if tensor._base is None else tensor._base for tensor in tensors.values())
    return list({id(base): base for base in bases}.values())


class Draws:
    """One draw after the other; what they share, such as a Gaussian's σ = exp(½ρ), is computed for the first."""

    def __init__(self, model: BayesianModule, generator: Generator | None, samples: int) -> None:
        self.model = model
        self._fuses = Fused(model, samples) if Fused.suits(model) else None
        self._steady = Steady(model) if Steady.suits(model) else None
        self._noise_memory, self._weight_memory = Recycle(), Recycle()
        self._begin(generator)

    def _begin(self, generator: Generator | None) -> None:
        self.generator, self._start = generator, None if generator is None else generator.get_state()
        here = generator is None or generator.device.type == "cpu"
        self._fused = self._fuses if here else None
        self._recording: Recording | None = None

    def renew(self, generator: Generator | None) -> None:
        """From now on draws from this generator, under the weights as they are now, in the memory of those before."""
        self._begin(generator)
        for part in (self._fuses, self._steady):
            if part is not None:
                part.refresh()

    def restart(self) -> None:
        """Back to the first draw; without a generator there is no way back."""
        if self.generator is not None and self._start is not None:
            self.generator.set_state(self._start)

    @property
    def in_rows(self) -> bool:
        """Whether the noise of several draws is written row by row, on the device, and is all that they need."""
        on_device = self.generator is None or self.generator.device.type == "cuda"
        return self._steady is not None and self._steady.all_gaussian and on_device and not several_processes()

    def noises(self, count: int) -> list[Noise]:
        """What is random in the next draws, stacked: each tensor (K, …)."""
        if self._steady is not None and self.in_rows:
            return self._steady.noises(count, self.generator)
        noises = [self._noise() for _ in range(count)]
        return [{k: torch.stack([n[i][k] for n in noises]) for k in noises[0][i]} for i in range(len(noises[0]))]

    def next(self) -> Weights:
        """The next draw. It may take the memory of the one before, whose weights are then gone."""
        if self._steady is not None:  # a GPU's allocator keeps memory by itself
            return self.of(self._noise())
        with self._noise_memory:
            noise = self._noise()
        return self.of(noise)

    def of(self, noise: list[Noise]) -> Weights:
        """The draw with this noise, in the memory of the one before."""
        if self._steady is not None and self._fused is None:
            return Weights(lambda: self._one(noise), self._steady.flat)
        return Weights(lambda: self._one(noise))

    def several(self, stacked: list[Noise]) -> Weights:
        """Several draws at once, each weight (K, …)."""

        def make() -> dict[str, Tensor]:
            if self._fused is not None:
                return self._fused(stacked[0]["seeds"])
            if self._steady is not None and self._steady.all_gaussian:
                return self._steady.several(stacked)
            with batching():
                return torch.vmap(lambda noise: self._again(noise))(stacked)

        return Weights(make)

    def _noise(self) -> list[Noise]:
        return self.model.noise(self.generator) if self._fused is None else self._fused.noise(self.generator)

    def _one(self, noise: list[Noise]) -> dict[str, Tensor]:
        if self._fused is not None:
            return self._fused(noise[0]["seeds"])
        if self._steady is not None:
            return self._steady(noise)
        if self._recording is None:
            tensors, self._recording = record(
                lambda _: self.model.tensors(noise), modules_of(self.model.q), (), _flat(noise)
            )
            return tensors
        return self._again(noise, self._weight_memory)

    def _again(self, noise: list[Noise], memory: Recycle | None = None) -> dict[str, Tensor]:
        if self._recording is None:
            return self.model.tensors(noise)
        return again(lambda: self.model.tensors(noise), self._recording, _flat(noise), memory)


def _flat(noise: list[Noise]) -> list[Tensor]:
    return [tensor for part in noise for tensor in part.values()]


@contextmanager
def batching() -> Iterator[None]:
    """For `torch.vmap`: an operation without a batching rule runs draw by draw, which is not the user's to repair."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # attention in one operation has no such rule, in several it has
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
