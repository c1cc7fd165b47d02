"""The ensemble family of the patching paper, equation (1): every weight is one of K centroids, plus σ·ε.

    θ = Σ_k 1[Z = k] ⊙ (M_k + σ ε_k)

What tells its members apart is how much of the network shares one assignment Z, here called a *cell*:

    Ensemble      one Z for the whole network (its buffers too)     K centroids
    EMP           one Z per layer, weight and bias together         K centroids    equation (4)
    ECMP          one Z per element                                 K centroids    equation (5)
    Dropout       one Z per input unit, biases never dropped        M and 0        Table 2
    DropConnect   one Z per element, biases never dropped           M and 0        Table 2

Dropout and DropConnect are kept by their *mean*, as `nn.Dropout` users expect: the centroid is M = mean / (1 − p).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from byov.posterior.family import Noise, Roles, precise
from byov.posterior.layout import Layout
from byov.posterior.random import categorical, normal, uniform

Start = Literal["copy", "reset"]


def _check_sigma(name: str, sigma: float) -> None:
    if not 0.0 <= sigma < float("inf"):
        raise ValueError(f"{name} needs a σ of at least 0, not {sigma}.")


@dataclass(frozen=True)
class _Components(ABC):
    """K learned centroids, role `components` (K, P), mixed with fixed probabilities.

    `probs` defaults to uniform, as everywhere in the paper. `start="copy"` starts every centroid at the network's
    weights, so that a pretrained network is the mean; `start="reset"` initialises all but the first anew, which is what
    an explicit ensemble trained from scratch needs.
    """

    k: int
    probs: tuple[float, ...] | None = None
    sigma: float = 0.0
    start: Start = "copy"

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 2:
            raise ValueError(f"{name} needs at least 2 components, not k={self.k!r}.")
        _check_sigma(name, self.sigma)
        if self.start not in ("copy", "reset"):
            raise ValueError(f"{name} starts from 'copy' or 'reset', not {self.start!r}.")
        if self.probs is not None:
            probs = tuple(float(p) for p in self.probs)
            if len(probs) != self.k:
                raise ValueError(f"{name}({self.k}) needs {self.k} mixing probabilities, not {len(probs)}.")
            if not all(p > 0 for p in probs) or abs(sum(probs) - 1.0) > 1e-6:
                raise ValueError(f"{name} needs mixing probabilities above 0 that sum to 1, not {probs}.")
            object.__setattr__(self, "probs", probs)

    @property
    def mixing(self) -> tuple[float, ...]:
        return self.probs or (1.0 / self.k,) * self.k

    @abstractmethod
    def _assignment(self, components: Tensor, layout: Layout, generator: Generator | None) -> Tensor:
        """Z, one number per cell."""

    @abstractmethod
    def _select(self, components: Tensor, cells: Roles, z: Tensor) -> Tensor:
        """Σ_k 1[Z = k] ⊙ M_k."""

    def roles(self, initial: Tensor, fresh: Callable[[], Tensor]) -> dict[str, Tensor]:
        others = [initial if self.start == "copy" else fresh() for _ in range(self.k - 1)]
        return {"components": torch.stack([initial, *others])}

    def cells(self, layout: Layout) -> dict[str, Tensor]:
        return {}

    def noise(self, roles: Roles, layout: Layout, generator: Generator | None) -> Noise:
        noise = {"z": self._assignment(roles["components"], layout, generator)}
        if self.sigma > 0:
            noise["eps"] = normal(roles["components"].shape[-1:], roles["components"], generator)
        return noise

    def draw(self, roles: Roles, cells: Roles, noise: Noise) -> Tensor:
        theta = self._select(roles["components"], cells, noise["z"])
        return theta + self.sigma * noise["eps"] if self.sigma > 0 else theta

    def average(self, stack: Tensor) -> Tensor:
        """Σ_k p_k·stack_k, by differences to the first: equal components give themselves, exactly.

        A sum and not a matrix product, which autocast would take to bfloat16.
        """
        return stack[0] + self._mix(stack - stack[0])

    def _mix(self, stack: Tensor) -> Tensor:
        first, *others = (p * part for p, part in zip(self.mixing, stack.unbind(), strict=True))
        return sum(others, first)

    def mean(self, roles: Roles, cells: Roles) -> Tensor:
        return self.average(roles["components"])

    def std(self, roles: Roles, cells: Roles) -> Tensor:
        spread = roles["components"] - self.mean(roles, cells)
        return (self._mix(spread**2) + self.sigma**2).sqrt()

    def kl(self, roles: Roles, cells: Roles, mean: Tensor | float, std: Tensor | float) -> Tensor:
        """Equation (6): Σ_k p_k ‖M_k − m‖² / 2s², the constant dropped."""
        components = precise(roles["components"])
        return 0.5 * self._mix(((components - mean) / std) ** 2).sum()


@dataclass(frozen=True)
class Ensemble(_Components):
    """An explicit ensemble: one of K whole networks, its buffers (BatchNorm's statistics) included."""

    owns_buffers = True

    def _assignment(self, components: Tensor, layout: Layout, generator: Generator | None) -> Tensor:
        return categorical((1,), self.mixing, components, generator)

    def _select(self, components: Tensor, cells: Roles, z: Tensor) -> Tensor:
        return components.index_select(0, z).squeeze(0)


@dataclass(frozen=True)
class EMP(_Components):
    """Ensemble Model Patching, equation (4): each layer takes one of its K patches, weight and bias together."""

    def cells(self, layout: Layout) -> dict[str, Tensor]:
        return {"layer": layout.layer_cells()}

    def _assignment(self, components: Tensor, layout: Layout, generator: Generator | None) -> Tensor:
        return categorical((layout.layers,), self.mixing, components, generator)

    def _select(self, components: Tensor, cells: Roles, z: Tensor) -> Tensor:
        return components.gather(0, z.index_select(0, cells["layer"]).unsqueeze(0)).squeeze(0)


@dataclass(frozen=True)
class ECMP(_Components):
    """Ensemble Cross Model Patching, equation (5): each element takes one of its K patches by itself."""

    def _assignment(self, components: Tensor, layout: Layout, generator: Generator | None) -> Tensor:
        return categorical(components.shape[1:], self.mixing, components, generator)

    def _select(self, components: Tensor, cells: Roles, z: Tensor) -> Tensor:
        return components.gather(0, z.unsqueeze(0)).squeeze(0)


@dataclass(frozen=True)
class _Bernoulli(ABC):
    """Two centroids, M and 0, and the probability p of taking the 0; role `mean` (P,) holds (1 − p)·M."""

    p: float
    sigma: float = 0.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not 0.0 <= self.p < 1.0:
            raise ValueError(f"{name} needs a probability of dropping in [0, 1), not {self.p}.")
        _check_sigma(name, self.sigma)

    @abstractmethod
    def _keep(self, mean: Tensor, layout: Layout, generator: Generator | None) -> Tensor:
        """True where a cell is kept; biases always are."""

    @abstractmethod
    def _spread(self, cells: Roles, keep: Tensor) -> Tensor:
        """One factor per element from one `keep` per cell: 1/(1 − p) where kept, 0 where dropped, 1 for biases."""

    def roles(self, initial: Tensor, fresh: Callable[[], Tensor]) -> dict[str, Tensor]:
        return {"mean": initial}

    def noise(self, roles: Roles, layout: Layout, generator: Generator | None) -> Noise:
        noise = {"keep": self._keep(roles["mean"], layout, generator)}
        if self.sigma > 0:
            noise["eps"] = normal(roles["mean"].shape, roles["mean"], generator)
        return noise

    def draw(self, roles: Roles, cells: Roles, noise: Noise) -> Tensor:
        theta = roles["mean"] * self._spread(cells, noise["keep"].to(roles["mean"].dtype))
        return theta + self.sigma * noise["eps"] if self.sigma > 0 else theta

    def mean(self, roles: Roles, cells: Roles) -> Tensor:
        return roles["mean"]

    def std(self, roles: Roles, cells: Roles) -> Tensor:
        variance = torch.where(cells["bias"], 0.0, self.p / (1.0 - self.p) * roles["mean"] ** 2)
        return (variance + self.sigma**2).sqrt()

    def kl(self, roles: Roles, cells: Roles, mean: Tensor | float, std: Tensor | float) -> Tensor:
        """Equation (6) with p_k = (1 − p, p) on (M, 0), biases with one centroid; the constant dropped."""
        mu = precise(roles["mean"])
        centroid = mu / (1.0 - self.p)
        dropped = torch.as_tensor(mean, dtype=mu.dtype, device=mu.device)
        weight = (1.0 - self.p) * (centroid - mean) ** 2 + self.p * dropped**2
        return 0.5 * (torch.where(cells["bias"], (mu - mean) ** 2, weight) / std**2).sum()


@dataclass(frozen=True)
class Dropout(_Bernoulli):
    """MC dropout as a posterior: each input unit of a layer is dropped with probability p, for the whole minibatch."""

    def cells(self, layout: Layout) -> dict[str, Tensor]:
        return {"unit": layout.unit_cells(), "bias": layout.bias_cells()}

    def _keep(self, mean: Tensor, layout: Layout, generator: Generator | None) -> Tensor:
        return uniform((layout.units,), mean, generator) >= self.p

    def _spread(self, cells: Roles, keep: Tensor) -> Tensor:
        # The cell after the last unit is the biases'.
        return torch.cat([keep / (1.0 - self.p), keep.new_ones(1)]).index_select(0, cells["unit"])


@dataclass(frozen=True)
class DropConnect(_Bernoulli):
    """DropConnect (Wan et al. 2013): each weight is dropped by itself with probability p."""

    def cells(self, layout: Layout) -> dict[str, Tensor]:
        return {"bias": layout.bias_cells()}

    def _keep(self, mean: Tensor, layout: Layout, generator: Generator | None) -> Tensor:
        return uniform(mean.shape, mean, generator) >= self.p

    def _spread(self, cells: Roles, keep: Tensor) -> Tensor:
        return torch.where(cells["bias"], 1.0, keep / (1.0 - self.p))
