"""Every draw at the same place: weights on a GPU are written where the draw before had them, under the same names.

Cutting a draw into hundreds of named tensors takes the host a millisecond or two, as long as a small network's whole
pass takes the device. Here the names are cut once; a draw is then two or three operations on flat tensors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from byov.posterior.factor import Factor
from byov.posterior.family import Noise
from byov.posterior.gaussian import Gaussian
from byov.posterior.module import BayesianModule


class Steady:
    """The draws of a model: what `model.tensors(noise)` gives, in one place."""

    def __init__(self, model: BayesianModule) -> None:
        self._model = model
        self._flat = [torch.empty_like(factor.flat_mean()) for factor in model.factors]
        named: dict[str, Tensor] = {}
        for factor, flat in zip(model.factors, self._flat, strict=True):
            named |= factor.layout.with_ties(factor.layout.split(flat))
        self._named = {name: tensor for name, tensor in named.items() if model.handed_under(name)}
        self._std = [factor.flat_std() if _gaussian(factor) else None for factor in model.factors]

    @staticmethod
    def suits(model: BayesianModule) -> bool:
        """On a GPU, where no factor has buffers of its own, whose draw is another one's state."""
        return all(
            next(factor.parameters()).device.type == "cuda" and not factor.buffer_names for factor in model.factors
        )

    def __call__(self, noise: list[Noise]) -> dict[str, Tensor]:
        """The weights under this noise, by name; those of the call before are gone."""
        for factor, flat, std, part in zip(self._model.factors, self._flat, self._std, noise, strict=True):
            if std is None:
                flat.copy_(factor.family.draw(factor.roles, factor.cells, part))
            else:
                torch.addcmul(factor.get_parameter("mean"), std, part["eps"], out=flat)
        return self._named


def _gaussian(factor: Factor) -> bool:
    return type(factor.family) is Gaussian
