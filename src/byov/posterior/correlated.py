"""Gaussians with correlated weights: a full covariance, or Kronecker factors. `byov.laplace` fits both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from numbers import Real

import torch
from torch import Generator, Tensor

from byov.posterior.family import Noise, Roles, precise
from byov.posterior.gaussian import LARGEST
from byov.posterior.layout import Layout
from byov.posterior.random import normal

FULL_AT_MOST = 20_000
"""The most weights that a full covariance may cover: its factor then takes 1.6 GB in float32."""


@dataclass(frozen=True)
class _Correlated:
    """θ = μ + F·ε with ε ~ N(0, 1); F mixes weights and starts at exp(½·`log_var`) times the identity."""

    log_var: float = -10.0

    def __post_init__(self) -> None:
        if not (isinstance(self.log_var, Real) and -inf < self.log_var <= LARGEST):
            name = type(self).__name__
            raise ValueError(f"{name} needs a finite log_var of at most {LARGEST:g}, not {self.log_var!r}.")

    def cells(self, layout: Layout) -> dict[str, Tensor]:
        return {}

    def noise(self, roles: Roles, layout: Layout, generator: Generator | None) -> Noise:
        return {"eps": normal(roles["mean"].shape, roles["mean"], generator)}

    def mean(self, roles: Roles, cells: Roles) -> Tensor:
        return roles["mean"]


@dataclass(frozen=True)
class FullGaussian(_Correlated):
    """q(θ) = N(μ, L Lᵀ), one covariance for all covered weights: for a last layer of a few thousand weights.

    The role `factor` (P, P) holds L in its lower triangle; the upper triangle is ignored.
    """

    def roles(self, initial: Tensor, fresh: Callable[[], Tensor]) -> dict[str, Tensor]:
        if len(initial) > FULL_AT_MOST:
            raise ValueError(
                f"A full covariance of {len(initial):,} weights does not fit: cover at most {FULL_AT_MOST:,}, or use"
                " byov.KroneckerGaussian."
            )
        return {"mean": initial, "factor": torch.full_like(initial, 0.5 * self.log_var).exp().diag()}

    def draw(self, roles: Roles, cells: Roles, noise: Noise) -> Tensor:
        return roles["mean"] + _product(self._lower(roles), noise["eps"])

    def shared(self, roles: Roles, cells: Roles) -> Roles:
        return {**roles, "lower": self._lower(roles)}

    def std(self, roles: Roles, cells: Roles) -> Tensor:
        return self._lower(roles).square().sum(-1).sqrt()

    def kl(self, roles: Roles, cells: Roles, mean: Tensor | float, std: Tensor | float) -> Tensor:
        """Compute ½ Σ [(Σ_ii + (μ−m)²)/s² − 1 − 2 log|L_ii| + log s²]."""
        lower = precise(self._lower(roles))
        log_volume = lower.diagonal().abs().log().sum()
        return _kl(precise(roles["mean"]), lower.square().sum(-1), log_volume, mean, std)

    @staticmethod
    def _lower(roles: Roles) -> Tensor:
        return roles["lower"] if "lower" in roles else roles["factor"].tril()


@dataclass(frozen=True)
class KroneckerGaussian(_Correlated):
    """A Gaussian for each parameter in rotated coordinates: a draw is μ + U (σ ∘ ε) Vᵀ, with σ² = exp(ρ).

    Each parameter is treated as a matrix, its first dimension by all others; a bias is one column. The roles `rows0`,
    `columns0`, `rows1`, … hold U and V of each parameter. They start as the identity, so that q starts like `Gaussian`.
    With the eigenvectors of two Kronecker factors in U and V, and ρ set from the eigenvalues, it is the posterior of a
    Kronecker-factored Laplace approximation that includes the prior's precision exactly.
    """

    def roles(self, initial: Tensor, fresh: Callable[[], Tensor]) -> dict[str, Tensor]:
        return {"mean": initial, "log_var": torch.full_like(initial, self.log_var)}

    def layer_roles(self, layout: Layout, initial: Tensor) -> dict[str, Tensor]:
        """Return U and V of every parameter."""
        found = {}
        for i, slot in enumerate(layout.slots):
            rows = slot.shape[0] if slot.shape else 1
            found[f"rows{i}"] = torch.eye(rows, dtype=initial.dtype, device=initial.device)
            found[f"columns{i}"] = torch.eye(slot.numel // rows, dtype=initial.dtype, device=initial.device)
        return found

    def draw(self, roles: Roles, cells: Roles, noise: Noise) -> Tensor:
        turned = torch.exp(0.5 * roles["log_var"]) * noise["eps"]
        return roles["mean"] + torch.cat([_product(u, part, v.mT).flatten() for u, part, v in _parts(roles, turned)])

    def std(self, roles: Roles, cells: Roles) -> Tensor:
        return _variance(roles).sqrt()

    def kl(self, roles: Roles, cells: Roles, mean: Tensor | float, std: Tensor | float) -> Tensor:
        """Compute ½ Σ [(Var θ + (μ−m)²)/s² − 1 + log s²] − log|F|, where log|F| = Σ ½ρ + c·log|U| + r·log|V|."""
        roles = {role: precise(value) for role, value in roles.items()}
        log_volume = 0.5 * roles["log_var"].sum()
        for u, part, v in _parts(roles, roles["log_var"]):
            rows, columns = part.shape
            log_volume = log_volume + columns * torch.linalg.slogdet(u)[1] + rows * torch.linalg.slogdet(v)[1]
        return _kl(roles["mean"], _variance(roles), log_volume, mean, std)


def _parts(roles: Roles, flat: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield for each parameter U, its part of a flat tensor (P,) as a matrix, and V."""
    pairs = [(roles[f"rows{i}"], roles[f"columns{i}"]) for i in range(sum(role.startswith("rows") for role in roles))]
    sizes = [len(u) * len(v) for u, v in pairs]
    for (u, v), part in zip(pairs, flat.split(sizes), strict=True):
        yield u, part.view(len(u), len(v)), v


def _variance(roles: Roles) -> Tensor:
    """Compute Var θ = U² σ² (V²)ᵀ, with element-wise squares."""
    parts = _parts(roles, torch.exp(roles["log_var"]))
    return torch.cat([_product(u.square(), part, v.square().mT).flatten() for u, part, v in parts])


def _product(first: Tensor, *others: Tensor) -> Tensor:
    """Multiply matrices in their own dtype: autocast would compute a covariance in bfloat16."""
    with torch.autocast(first.device.type, enabled=False):
        for other in others:
            first = first @ other
    return first


def _kl(mu: Tensor, variance: Tensor, log_volume: Tensor, mean: Tensor | float, std: Tensor | float) -> Tensor:
    """Compute KL(N(μ, F Fᵀ) ‖ N(m, s²)) from the diagonal of the covariance and log|F|."""
    mean, std = (torch.as_tensor(m, dtype=mu.dtype, device=mu.device) for m in (mean, std))
    return 0.5 * ((variance + (mu - mean) ** 2) / std**2 - 1.0 + 2.0 * std.log()).sum() - log_volume
