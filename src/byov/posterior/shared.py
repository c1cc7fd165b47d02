"""The shared layers of the patching paper, equation (3): weights with a fixed σ, W ~ N(M, σ²)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from numbers import Real

import torch
from torch import Generator, Tensor

from byov.posterior.family import Noise, Roles, precise
from byov.posterior.layout import Layout
from byov.posterior.random import normal


@dataclass(frozen=True)
class Shared:
    """q(θ) = N(M, σ²) with M learned and σ fixed; the paper uses σ "small, e.g. machine epsilon".

    It is for the layers that are not patched: `{byov.norm_layers: byov.EMP(5, sigma=s), "*": byov.Shared(s)}`. A
    parameter that no rule covers is the same with σ = 0 and costs nothing; this draws one normal number per weight.
    """

    sigma: float

    def __post_init__(self) -> None:
        if not (isinstance(self.sigma, Real) and 0.0 <= self.sigma < inf):
            raise ValueError(f"Shared needs a σ of at least 0, not {self.sigma!r}.")

    def roles(self, initial: Tensor, fresh: Callable[[], Tensor]) -> dict[str, Tensor]:
        return {"mean": initial}

    def cells(self, layout: Layout) -> dict[str, Tensor]:
        return {}

    def noise(self, roles: Roles, layout: Layout, generator: Generator | None) -> Noise:
        return {"eps": normal(roles["mean"].shape, roles["mean"], generator)}

    def draw(self, roles: Roles, cells: Roles, noise: Noise) -> Tensor:
        return roles["mean"] + self.sigma * noise["eps"]

    def mean(self, roles: Roles, cells: Roles) -> Tensor:
        return roles["mean"]

    def std(self, roles: Roles, cells: Roles) -> Tensor:
        return torch.full_like(roles["mean"], self.sigma)

    def kl(self, roles: Roles, cells: Roles, mean: Tensor | float, std: Tensor | float) -> Tensor:
        """Compute the last two sums of equation (6), ‖M − m‖² / 2s², without the terms in σ alone, as in the paper."""
        return 0.5 * (((precise(roles["mean"]) - mean) / std) ** 2).sum()
