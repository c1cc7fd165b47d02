"""θ = μ + σ·ε of a large Gaussian on a CPU, in memory that is written to again and again.

A fresh tensor of eleven million weights is memory that the system has to map and clear, page by page: that takes twice
as long as θ itself. Written as its formula, the first draw makes three besides the noise, and the second one more. Here
the first makes two, or one where it is also the last, and the others none.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from byov.posterior.gaussian import Gaussian
from byov.posterior.module import BayesianModule

LARGE = 1 << 20
"""Weights from which it is worth it."""


class InPlace:
    """The draws of a model whose posterior is one Gaussian, equal to `model.tensors(noise)` to the bit.

    `once` says that one draw is all that is wanted: it then lies where σ was.
    """

    def __init__(self, model: BayesianModule, once: bool) -> None:
        (self._factor,) = model.factors
        self._names = list(model.tensors())
        self._once = once
        self._std: Tensor | None = None
        self._theta: Tensor | None = None

    @staticmethod
    def suits(model: BayesianModule) -> bool:
        factor, *others = model.factors
        roles = list(factor.roles.values())
        plain = all(type(role) is nn.Parameter and role.device.type == "cpu" for role in roles)
        return not others and type(factor.family) is Gaussian and plain and factor.layout.numel >= LARGE

    @torch.no_grad()
    def __call__(self, eps: Tensor) -> dict[str, Tensor]:
        """The weights under noise (P,), in the memory of the draw before; or stacked (K, …) under noise (K, P)."""
        mean = self._factor.get_parameter("mean")
        if self._std is None:
            self._std = torch.mul(self._factor.get_parameter("log_var"), 0.5).exp_()
        if eps.ndim > 1:
            theta = torch.addcmul(mean, self._std, eps)
        elif self._once:
            theta, self._std = torch.addcmul(mean, self._std, eps, out=self._std), None
        else:
            self._theta = torch.empty_like(mean) if self._theta is None else self._theta
            theta = torch.addcmul(mean, self._std, eps, out=self._theta)
        layout = self._factor.layout
        named = layout.with_ties(layout.split(theta))
        return {name: named[name] for name in self._names}
