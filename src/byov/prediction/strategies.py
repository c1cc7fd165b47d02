"""How draws are gone through: one after the other, or batched. A random last layer has a file of its own, `head`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Generator, Tensor
from torch.func import functional_call

from byov.posterior.family import Noise
from byov.prediction.head import same_state, stacked_noise, state_of
from byov.prediction.inputs import Batch, call, device_of, mapped, tensors_of
from byov.prediction.resident import Resident

Strategy = Literal["auto", "loop", "vmap"]

CHUNK = {"cpu": 1 << 23, "cuda": 1 << 26}
"""Elements of the weights, or of the inputs, of the draws that `vmap` batches."""


class Loop:
    """One draw after the other, as a loop by hand; without resident weights, a plain network's one pass."""

    strategy, chunk = "loop", 1

    def __init__(self, model: Any, x: Batch, resident: Resident | None, generator: Generator | None = None) -> None:
        self.model, self.x, self.resident, self.generator = model, x, resident, generator
        self._copy = resident is not None  # the first pass gets a copy, to see whether the network writes into it

    def __call__(self, count: int) -> Tensor:
        """What the network returns under the next draw (1, N, …)."""
        return self.under(None if self.resident is None else self.model.noise(self.generator))

    def under(self, noise: list[Noise] | None) -> Tensor:
        """What the network returns under the draw with this noise (1, N, …)."""
        if self.resident is not None:
            self.resident.write(noise)
        x = mapped(Tensor.clone, self.x) if self._copy else self.x
        out = call(self.model if self.resident is None else self.model.net, x)
        self._copy = self._copy and _written(x)
        return out[None]

    def select(self, keep: Tensor) -> None:
        """Go on with some of the inputs only."""
        self.x = mapped(lambda tensor: tensor[keep], self.x)


def _written(copy: Batch) -> bool:
    return any(tensor._version for tensor in tensors_of(copy))


class Vmap(Loop):
    """Draws batched by torch.vmap, whose numbers are those of the loop up to rounding."""

    strategy = "vmap"

    @property
    def chunk(self) -> int:  # type: ignore[override]
        """How many draws to batch."""
        weights = sum(factor.layout.numel for factor in self.model.factors)
        inputs = sum(tensor.numel() for tensor in tensors_of(self.x))
        return max(1, CHUNK.get(device_of(self.model).type, 1 << 23) // max(weights, inputs))

    def __call__(self, count: int) -> Tensor:
        """What the network returns under the next draws (K, N, …)."""
        noises = stacked_noise(self.model, self.generator, count)
        x, modules, device = mapped(Tensor.clone, self.x), list(self.model.net.modules()), device_of(self.model)

        def one(noise: list[Noise]) -> Tensor:
            def net(*args: Any, **kwargs: Any) -> Any:
                return functional_call(self.model.net, self.model.tensors(noise), args, kwargs)

            return call(net, x)

        before = state_of(modules, device)
        try:
            with _batching():
                out = torch.vmap(one)(noises)
        except (RuntimeError, NotImplementedError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise RuntimeError(f"torch.vmap cannot batch this network ({reason}): use strategy='loop'.") from error
        if _written(x) or not same_state(before, state_of(modules, device)):
            raise RuntimeError(
                "The network is random, or changes itself or its inputs: use strategy='loop', not 'vmap'."
            )
        return out


@contextmanager
def _batching() -> Iterator[None]:
    """For `torch.vmap`: an operation without a batching rule runs draw by draw, which is not the user's to repair."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # attention in one operation has no such rule, in several it has
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
