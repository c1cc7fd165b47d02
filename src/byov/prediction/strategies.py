"""Ways to run draws: one after the other, or batched. A random last layer is in `head`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call

from byov.posterior.family import Noise
from byov.posterior.mixture import Ensemble
from byov.posterior.module import BayesianModule
from byov.prediction.head import alike, fingerprint, known, stacked_noise
from byov.prediction.inputs import Batch, call, device_of, kept, map_tensors, tensors_of
from byov.prediction.outputs import OutputSpec
from byov.prediction.resident import Resident

Strategy = Literal["auto", "loop", "vmap"]

MAX_OUTPUT_ELEMENTS = (
    1 << 22
)  # elements of the outputs that a loop returns at once: adding one draw takes a dozen kernels
CHUNK = {"cpu": 1 << 23, "cuda": 1 << 26}  # elements of the weights, or of the inputs, of the draws that vmap batches


class Loop:
    """Run one draw after the other; without resident weights, run the single pass of a plain network."""

    strategy, chunk = "loop", 8

    def __init__(
        self, model: Any, x: Batch, reading: OutputSpec, resident: Resident | None = None, generator: Any = None
    ) -> None:
        self.model, self.x, self.reading, self.resident, self.generator = model, x, reading, resident, generator
        self.net = model if resident is None else resident.net
        self.known = resident is None or known(resident.modules or self.net.modules())
        self._copy = resident is not None  # a network may write into its inputs; known ones in the first pass or never

    def __call__(self, count: int) -> Tensor:
        """Return the network's outputs under the next draws (K, N, …), fewer than `count` if they are large."""
        out = self.under(self.noise())
        outputs = out.new_empty(min(count, max(1, MAX_OUTPUT_ELEMENTS // max(out.numel(), 1))), *out.shape)
        outputs[0] = out
        del out  # CUDA graphs reuse the memory of a pass only if nothing refers to it
        for i in range(1, len(outputs)):
            outputs[i] = self.under(self.noise())
        return outputs

    def noise(self) -> list[Noise]:
        return [] if self.resident is None else self.model.noise(self.generator)

    def state(self) -> Any:
        return None if self.known else fingerprint(self.net)

    def under(self, noise: list[Noise]) -> Tensor:
        """Return the network's output under the draw with this noise (N, …)."""
        if self.resident is None:
            return call(self.net, self.x, self.reading.tensor)
        self.resident.write(noise)
        x = map_tensors(Tensor.clone, self.x) if self._copy else self.x
        out = call(self.net, x, self.reading.tensor)
        self._copy = self._copy and (not self.known or any(tensor._version for tensor in tensors_of(x)))
        return out

    def select(self, keep: Tensor) -> None:
        """Keep only the inputs in the mask `keep`."""
        self.x = kept(self.x, keep)


class Vmap(Loop):
    """Batch draws by torch.vmap, on contiguous inputs (as it requires); unknown code is compared with single passes."""

    strategy = "vmap"

    @property
    def chunk(self) -> int:  # type: ignore[override]
        """Return the number of draws to batch."""
        weights = sum(factor.layout.numel for factor in self.model.factors)
        largest = max(weights, sum(tensor.numel() for tensor in tensors_of(self.x)))
        return max(1, CHUNK.get(device_of(self.model).type, 1 << 23) // largest)

    def __call__(self, count: int) -> Tensor:
        """Return the network's outputs under the next draws (K, N, …)."""
        noises, before = self.model.noises(count, self.generator), self.state()
        try:
            with _batching():
                outputs = torch.vmap(self._one)(stacked_noise(noises))
            after = self.state()
            same = self.known or all(alike(outputs[i], self._one(noises[i])) for i in (0, -1))
        except (RuntimeError, NotImplementedError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            raise RuntimeError(f"torch.vmap cannot batch this network ({reason}): use strategy='loop'.") from error
        if not same or before != after:
            raise RuntimeError("The network is random, or changes between passes: use strategy='loop', not 'vmap'.")
        return outputs

    def _one(self, noise: list[Noise]) -> Tensor:
        net, inner = self.net, self.model.net
        within = "" if net is inner else next(f"{name}." for name, module in net.named_modules() if module is inner)
        tensors = {within + name: tensor for name, tensor in self.model.tensors(noise).items()}
        under = lambda *args, **kwargs: functional_call(net, tensors, args, kwargs, tie_weights=False)  # noqa: E731
        x = map_tensors(lambda tensor: tensor.clone(memory_format=torch.contiguous_format), self.x)
        return call(under, x, self.reading.tensor)


def members(model: BayesianModule | None) -> list[list[Noise]]:
    """Return the noise that selects each member of an explicit ensemble; raise if they are not equally likely."""
    factors = [] if model is None else model.factors
    family = factors[0].family if len(factors) == 1 else None
    if not isinstance(family, Ensemble) or family.learn_probs or family.sigma > 0 or len(set(family.mixing)) > 1:
        raise ValueError(
            "samples='members' is for one explicit ensemble of members that are equally likely, such as"
            " byov.from_checkpoints makes: pass a number of draws."
        )
    where = factors[0].roles["components"].device
    return [[{"z": torch.tensor([i], device=where)}] for i in range(family.k)]


@contextmanager
def _batching() -> Iterator[None]:
    """Prepare torch for vmap: operations without a batching rule run draw by draw, without a warning."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # fused attention has no such rule; its separate operations do
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
