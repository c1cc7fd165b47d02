"""The mean-field Gaussian: Bayes by Backprop (Blundell et al. 2015) with BYOV's parametrisation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log
from numbers import Real

import torch
from torch import Generator, Tensor

from byov.posterior.family import Noise, Roles, precise
from byov.posterior.layout import Layout
from byov.posterior.random import normal

LARGEST = 80.0
"""The largest log σ²: beyond it σ² is infinite in float32."""


@dataclass(frozen=True, repr=False)
class Gaussian:
    """q(θ) = N(μ, σ²) for each weight independently, θ = μ + exp(½ρ)·ε.

    ρ = log σ² is learned and starts at `log_var`. BYOV uses the exponential where Blundell et al. use a softplus, and
    starts at −10. With `relative`, σ starts at that fraction of each layer's scale instead (the root mean square of its
    weights), so that one number suits every network. One ε per forward pass is shared by the whole minibatch: no
    Flipout.
    """

    log_var: float = -10.0
    relative: float | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.log_var, Real) and -inf < self.log_var <= LARGEST):
            raise ValueError(f"Gaussian needs a finite log_var of at most {LARGEST:g}, not {self.log_var!r}.")
        if self.relative is not None and not (isinstance(self.relative, Real) and 0 < self.relative < inf):
            raise ValueError(f"Gaussian needs a relative σ above 0, or None, not {self.relative!r}.")

    def __repr__(self) -> str:
        # Without `relative` the text is the same as before that option existed: saved states are recognised by it.
        return f"Gaussian(log_var={self.log_var}{'' if self.relative is None else f', relative={self.relative}'})"

    def roles(self, initial: Tensor, fresh: Callable[[], Tensor]) -> dict[str, Tensor]:
        """Initialise μ at the network's weights and ρ at `log_var`, that is σ at exp(½·`log_var`)."""
        return {"mean": initial, "log_var": torch.full_like(initial, self.log_var)}

    def layer_roles(self, layout: Layout, initial: Tensor) -> dict[str, Tensor]:
        """Return ρ if σ starts relative to each layer's scale; a layer of zeros uses the network's scale."""
        if self.relative is None:
            return {}
        squares = precise(initial).square()
        network, layers = squares.mean(), layout.layer_means(squares)
        squares = torch.where(layers > 0, layers, torch.where(network > 0, network, 1.0))
        return {"log_var": (squares.log() + 2 * log(self.relative)).to(initial.dtype)}

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
        """Add σ to the roles, so that many draws from the same q compute it once."""
        return {**roles, "std": self.std(roles, cells)}

    def kl(self, roles: Roles, cells: Roles, mean: Tensor | float, std: Tensor | float) -> Tensor:
        """Compute ½ Σ [(σ² + (μ−m)²)/s² − 1 − ρ + log s²]."""
        mu, log_var = precise(roles["mean"]), precise(roles["log_var"])
        mean, std = (torch.as_tensor(m, dtype=mu.dtype, device=mu.device) for m in (mean, std))
        return 0.5 * ((log_var.exp() + (mu - mean) ** 2) / std**2 - 1.0 - log_var + 2.0 * std.log()).sum()
