"""Every draw at the same place: weights on a GPU are written where the draw before had them, under the same names.

Cutting a draw into hundreds of named tensors takes the host a millisecond or two, as long as a small network's whole
pass takes the device. Here the names are cut once; a draw is then two or three operations on flat tensors.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from byov.posterior.factor import Factor
from byov.posterior.family import Noise
from byov.posterior.gaussian import Gaussian
from byov.posterior.module import BayesianModule


class Steady:
    """The draws of a model: what `model.tensors(noise)` gives, in one place."""

    def __init__(self, model: BayesianModule) -> None:
        self._factors, self._handed_under = model.factors, model.handed_under
        self._mean = [factor.get_parameter("mean") if _gaussian(factor) else None for factor in self._factors]
        self._std = [factor.flat_std() if _gaussian(factor) else None for factor in self._factors]
        self.all_gaussian = None not in self._std
        self.flat = [torch.empty_like(factor.flat_mean()) for factor in self._factors]
        self._named: dict[str, Tensor] = {}

    @staticmethod
    def suits(model: BayesianModule) -> bool:
        """On a GPU, where no factor has buffers of its own, whose draw is another one's state."""
        return all(
            next(factor.parameters()).device.type == "cuda" and not factor.buffer_names for factor in model.factors
        )

    @torch.no_grad()
    def refresh(self) -> None:
        """ρ may have changed; σ stays where it is, where a graph may read it."""
        for factor, std in zip(self._factors, self._std, strict=True):
            if std is not None:
                std.copy_(factor.flat_std())

    def __call__(self, noise: list[Noise]) -> dict[str, Tensor]:
        """The weights under this noise, by name; those of the call before are gone."""
        for factor, flat, mean, std, part in zip(self._factors, self.flat, self._mean, self._std, noise, strict=True):
            if mean is None or std is None:
                flat.copy_(factor.family.draw(factor.roles, factor.cells, part))
            else:
                torch.addcmul(mean, std, part["eps"], out=flat)
        if not self._named:  # only now, when the device has something to do meanwhile
            self._named = self._cut(self.flat)
        return self._named

    def noises(self, count: int, generator: Generator | None) -> list[Noise]:
        """What is random in the next draws of a Gaussian: the numbers of `model.noise`, each written to its row."""
        place = self.flat[0].device if generator is None else generator.device
        rows = [torch.empty(count, flat.numel(), dtype=flat.dtype, device=place) for flat in self.flat]
        for draw in zip(*(row.unbind() for row in rows), strict=True):
            for row in draw:
                row.normal_(generator=generator)
        return [{"eps": row.to(flat.device)} for row, flat in zip(rows, self.flat, strict=True)]

    def several(self, noise: list[Noise]) -> dict[str, Tensor]:
        """The weights of a Gaussian under several draws' noise, each (K, …)."""
        parts = zip(self._mean, self._std, noise, strict=True)
        return self._cut([torch.addcmul(mean, std, part["eps"]) for mean, std, part in parts])  # type: ignore[arg-type]

    def _cut(self, flats: list[Tensor]) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {}
        for factor, flat in zip(self._factors, flats, strict=True):
            named |= factor.layout.with_ties(factor.layout.split(flat))
        return {name: tensor for name, tensor in named.items() if self._handed_under(name)}


def _gaussian(factor: Factor) -> bool:
    return type(factor.family) is Gaussian
