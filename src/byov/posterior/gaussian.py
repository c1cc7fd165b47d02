"""The mean-field Gaussian: Bayes by Backprop (Blundell et al. 2015) with BYOV's parametrisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from numbers import Real

import torch
from torch import Generator, Tensor

from byov.posterior.family import Noise, Roles, precise
from byov.posterior.layout import Layout
from byov.posterior.random import normal


@dataclass(frozen=True)
class Gaussian:
    """q(θ) = N(μ, σ²) for each weight by itself, θ = μ + exp(½ρ)·ε.

    ρ = log σ² is learned and starts at `log_var`; BYOV uses the exponential where Blundell et al. have a softplus, and
    −10 to start from. One ε per forward pass, shared by the whole minibatch: no Flipout.
    """

    log_var: float = -10.0

    def __post_init__(self) -> None:
        if not (isinstance(self.log_var, Real) and isfinite(self.log_var)):
            raise ValueError(f"Gaussian needs a finite log_var, not {self.log_var!r}.")

    def roles(self, initial: Tensor, fresh: Callable[[], Tensor]) -> dict[str, Tensor]:
        """Initialise μ at the network's weights and ρ at `log_var`, that is σ at exp(½·`log_var`)."""
        return {"mean": initial, "log_var": torch.full_like(initial, self.log_var)}

    def cells(self, layout: Layout) -> dict[str, Tensor]:
        return {}

    def noise(self, roles: Roles, layout: Layout, generator: Generator | None) -> Noise:
        return {"eps": normal(roles["mean"].shape, roles["mean"], generator)}

    def draw(self, roles: Roles, cells: Roles, noise: Noise) -> Tensor:
        return torch.addcmul(roles["mean"], self.std(roles, cells), noise["eps"])

    def mean(self, roles: Roles, cells: Roles) -> Tensor:
        return roles["mean"]

    def std(self, roles: Roles, cells: Roles) -> Tensor:
        return roles["std"] if "std" in roles else torch.exp(0.5 * roles["log_var"])

    def shared(self, roles: Roles, cells: Roles) -> Roles:
        """Add σ to the roles: many draws from the same q compute it once."""
        return {**roles, "std": self.std(roles, cells)}

    def kl(self, roles: Roles, cells: Roles, mean: Tensor | float, std: Tensor | float) -> Tensor:
        """Compute ½ Σ [(σ² + (μ−m)²)/s² − 1 − ρ + log s²]."""
        mu, log_var = precise(roles["mean"]), precise(roles["log_var"])
        mean, std = (torch.as_tensor(m, dtype=mu.dtype, device=mu.device) for m in (mean, std))
        return 0.5 * ((log_var.exp() + (mu - mean) ** 2) / std**2 - 1.0 - log_var + 2.0 * std.log()).sum()
