"""The ensemble family of the patching paper, equation (1): every weight is one of K centroids, plus σ·ε.

    θ = Σ_k 1[Z = k] ⊙ (M_k + σ ε_k)

Its members differ in how much of the network shares one assignment Z, here called a *cell*:

    Ensemble      one Z for the whole network (its buffers too)     K centroids
    EMP           one Z per layer, weight and bias together         K centroids    equation (4)
    ECMP          one Z per element                                 K centroids    equation (5)
    Dropout       one Z per input unit, biases never dropped        M and 0        Table 2
    DropConnect   one Z per element, biases never dropped           M and 0        Table 2

Dropout and DropConnect store their *mean*, as `nn.Dropout` users expect: the centroid is M = mean / (1 − p).

The mixing probabilities are fixed, as everywhere in the paper, or learned per layer (`learn_probs`; its section 6). A
draw of Z has no derivative, so their gradient needs an estimator. With g = ∂L/∂θ at the draw, s_k = g·M_k over a cell,
s̄ = Σ_k p_k s_k and D the component drawn, the estimator is ReinMax (Liu et al. 2023),

    ∂L/∂logit_j ≈ ½ p_j (s_j − s̄) + ½ (1[j = D] − p_j)(s_D − s̄)

the trapezoidal rule for L(M_j) − L(M_k): exact in expectation where L is quadratic along the line between two
components, third-order in their distance otherwise. Twice the first term alone is the straight-through estimator,
which is right only for a linear L. The score function is unbiased, but a single number, the loss, would have to
separate the good assignments of thousands of cells from the bad ones; here each cell uses its own gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from numbers import Real
from typing import Literal

import torch
from torch import Generator, Tensor

from byov.posterior.family import Noise, Roles, precise
from byov.posterior.layout import Layout
from byov.posterior.random import categorical, normal, uniform

Start = Literal["copy", "reset"]

SPREAD = 0.8
"""Default distance between components at the start: 0.8/√L of each weight for L layers. See results/defaults."""


def _within(value: float, end: float) -> bool:
    """Return whether `value` is a number in [0, end)."""
    return isinstance(value, Real) and 0.0 <= value < end


def _check_sigma(name: str, sigma: float) -> None:
    if not _within(sigma, float("inf")):
        raise ValueError(f"{name} needs a σ of at least 0, not {sigma!r}.")


@dataclass(frozen=True)
class _Components(ABC):
    """K learned centroids, role `components` (K, P), mixed with fixed or learned probabilities.

    `probs` defaults to uniform, as everywhere in the paper. `start="copy"` starts every centroid at the network's
    weights, so that a pretrained network is the mean; `start="reset"` reinitialises all but the first. `spread` then
    moves each element w of each centroid by spread·|w|·ε and keeps the mean of the centroids in place. Otherwise the
    patches of a norm, which all start at 1 and 0, would differ only through the batches they happen to see. The default
    spread is 0.8/√L for copies in L layers, so that the total does not depend on the depth, and 0 for reinitialised
    centroids. `learn_probs` adds the role `logits` (K, layers): the probabilities start at `probs` and are learned
    separately for each layer (an `Ensemble` has one set for all). With `zero` the last component stays 0, as in dropout
    (appendix D.1): K − 1 components are learned, and stored as (1 − p_K)·M.
    """

    k: int
    probs: tuple[float, ...] | None = None
    sigma: float = 0.0
    start: Start = "copy"
    spread: float | None = None
    learn_probs: bool = False
    zero: bool = False

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
        if self.spread is not None and not _within(self.spread, float("inf")):
            raise ValueError(f"{name} needs a spread of at least 0, or None, not {self.spread!r}.")
        if self.zero and self.learn_probs:
            raise ValueError(f"{name} with a component at zero has fixed probabilities: leave out learn_probs.")

    def __repr__(self) -> str:
        # The same text as before learned probabilities existed, so that states saved then are still recognised. A saved
        # state does not depend on `spread`.
        more = (", learn_probs=True" if self.learn_probs else "") + (", zero=True" if self.zero else "")
        name = type(self).__name__
        return f"{name}(k={self.k}, probs={self.probs}, sigma={self.sigma}, start={self.start!r}{more})"

    @property
    def mixing(self) -> tuple[float, ...]:
        """Return the fixed probabilities, or the initial values of learned ones."""
        return self.probs or (1.0 / self.k,) * self.k

    def _groups(self, layout: Layout) -> int:
        """Count the sets of mixing probabilities to learn; one per layer by default."""
        return layout.layers

    @abstractmethod
    def _cells(self, layout: Layout, components: Tensor) -> tuple[int, ...]:
        """Return the shape of Z, the assignments of one draw."""

    @abstractmethod
    def _elements(self, of_cells: Tensor, cells: Roles) -> Tensor:
        """Expand values per cell or group to elements: (…, P), or (…, 1) if all elements share one."""

    # Learned tensors

    def roles(self, initial: Tensor, fresh: Callable[[], Tensor]) -> dict[str, Tensor]:
        others = [initial if self.start == "copy" else fresh() for _ in range(self.k - 1 - self.zero)]
        return {"components": self._apart(torch.stack([initial, *others]), self.spread or 0.0)}

    def _learned(self) -> tuple[float, ...]:
        """Return the fixed probabilities of the learned components, normalised to sum to 1."""
        return tuple(p / (1.0 - self.mixing[-1]) for p in self.mixing[:-1]) if self.zero else self.mixing

    def _centroids(self, roles: Roles) -> Tensor:
        """Return all K centroids (K, P); with `zero` the last one is 0."""
        learned = roles["components"]
        return torch.cat([learned / (1.0 - self.mixing[-1]), torch.zeros_like(learned[:1])]) if self.zero else learned

    def layer_roles(self, layout: Layout, initial: Tensor) -> dict[str, Tensor]:
        """Return copies at the default distance if no spread is given, and the logits (K, groups) if learned."""
        found: dict[str, Tensor] = {}
        if self.spread is None and self.start == "copy":
            found["components"] = self._apart(initial.expand(self.k - self.zero, -1), SPREAD / layout.layers**0.5)
        if self.learn_probs:
            logits = torch.tensor(self.mixing, dtype=initial.dtype, device=initial.device).log()
            found["logits"] = logits[:, None].repeat(1, self._groups(layout))
        return found

    def _apart(self, stack: Tensor, spread: float) -> Tensor:
        away = spread * stack.abs() * torch.randn_like(stack) if spread else torch.zeros_like(stack)
        return stack + away - self._mix(away, self._learned())

    def cells(self, layout: Layout) -> dict[str, Tensor]:
        return {}

    # Noise and draws

    def noise(self, roles: Roles, layout: Layout, generator: Generator | None) -> Noise:
        components = roles["components"]
        shape = self._cells(layout, components)
        if self.learn_probs:  # held noise must not depend on learned probabilities
            noise = {"u": uniform(shape, components, generator)}
        else:
            noise = {"z": categorical(shape, self.mixing, components, generator)}
        if self.sigma > 0:
            noise["eps"] = normal(components.shape[-1:], components, generator)
        return noise

    def draw(self, roles: Roles, cells: Roles, noise: Noise) -> Tensor:
        components, z = self._centroids(roles), self._elements(self.assignment(roles, cells, noise), cells)
        # If all elements share one Z, read a row instead of gathering.
        theta = (components.index_select(0, z) if len(z) == 1 else components.gather(0, z.unsqueeze(0))).squeeze(0)
        if self.learn_probs and torch.is_grad_enabled():
            logits = self._elements(roles["logits"], cells)
            theta = theta + _reinmax_term(components.detach(), logits, z, theta.detach())
        return theta + self.sigma * noise["eps"] if self.sigma > 0 else theta

    def assignment(self, roles: Roles, cells: Roles, noise: Noise) -> Tensor:
        """Return Z, one component number per cell."""
        return _pick(noise["u"], self._of_cells(roles["logits"], cells)) if self.learn_probs else noise["z"]

    def _of_cells(self, logits: Tensor, cells: Roles) -> Tensor:
        """Return the logits of each cell; by default each group is one cell."""
        return logits

    # Moments and KL

    def average(self, stack: Tensor, probs: Sequence[float] | Tensor | None = None) -> Tensor:
        """Return Σ_k p_k·stack_k, by differences to the first, so that equal components average to exactly themselves.

        It is a sum and not a matrix product, which autocast would compute in bfloat16.
        """
        return stack[0] + self._mix(stack - stack[0], self.mixing if probs is None else probs)

    @staticmethod
    def _mix(stack: Tensor, probs: Sequence[float] | Tensor) -> Tensor:
        first, *others = (p * part for p, part in zip(probs, stack.unbind(), strict=True))
        return sum(others, first)

    def mixing_of(self, roles: Roles, cells: Roles) -> Sequence[float] | Tensor:
        """Return p_k for every element: K numbers, or learned ones (K, P), or (K,) if all elements share them."""
        return self._elements(roles["logits"].softmax(0), cells).squeeze(1) if self.learn_probs else self.mixing

    def mean(self, roles: Roles, cells: Roles) -> Tensor:
        probs = self.mixing_of(roles, cells) if self.learn_probs else self._learned()
        return self.average(roles["components"], probs)

    def std(self, roles: Roles, cells: Roles) -> Tensor:
        spread = self._centroids(roles) - self.mean(roles, cells)
        return (self._mix(spread**2, self.mixing_of(roles, cells)) + self.sigma**2).sqrt()

    def kl(self, roles: Roles, cells: Roles, mean: Tensor | float, std: Tensor | float) -> Tensor:
        """Compute equation (6), Σ_k p_k ‖M_k − m‖² / 2s², without the constant.

        With learned probabilities a part of that constant varies: the entropy of Z, log K − KL(p ‖ uniform) for each
        assignment of a draw. KL(p ‖ uniform) is then added; it starts at 0 if the probabilities start uniform.
        """
        components = precise(self._centroids(roles))
        quadratic = 0.5 * self._mix(((components - mean) / std) ** 2, self.mixing_of(roles, cells)).sum()
        if not self.learn_probs:
            return quadratic
        log_p = precise(roles["logits"]).log_softmax(0)
        from_uniform = (log_p.exp() * (log_p + log(self.k))).sum(0)
        return quadratic + (from_uniform * cells["count"] if "count" in cells else from_uniform).sum()


def _pick(u: Tensor, logits: Tensor) -> Tensor:
    """Pick component numbers from uniform noise: count the cumulative probabilities at or below it."""
    edges = precise(logits.detach()).softmax(0).cumsum(0)[:-1]
    return (u >= edges).sum(0)


def _reinmax_term(components: Tensor, logits: Tensor, z: Tensor, drawn: Tensor) -> Tensor:
    """Return zero, with the gradient of θ in the logits that the module docstring defines."""
    log_p = logits.log_softmax(0)
    p = log_p.exp()
    mean = (p.detach() * components).sum(0)
    path = 0.5 * ((p * components).sum(0) + log_p.gather(0, z.unsqueeze(0)).squeeze(0) * (drawn - mean))
    return path - path.detach()


@dataclass(frozen=True, repr=False)
class Ensemble(_Components):
    """An explicit ensemble: one of K whole networks, including its buffers (BatchNorm statistics)."""

    owns_buffers = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.zero:
            raise ValueError("Ensemble has no component at zero: all weights of that network would be 0.")

    def _groups(self, layout: Layout) -> int:
        return 1

    def _cells(self, layout: Layout, components: Tensor) -> tuple[int, ...]:
        return (1,)

    def _elements(self, of_cells: Tensor, cells: Roles) -> Tensor:
        return of_cells


@dataclass(frozen=True, repr=False)
class EMP(_Components):
    """Ensemble Model Patching, equation (4): each layer uses one of its K patches, weight and bias together."""

    def cells(self, layout: Layout) -> dict[str, Tensor]:
        return {"layer": layout.layer_cells()}

    def _cells(self, layout: Layout, components: Tensor) -> tuple[int, ...]:
        return (layout.layers,)

    def _elements(self, of_cells: Tensor, cells: Roles) -> Tensor:
        return of_cells.index_select(-1, cells["layer"])


@dataclass(frozen=True, repr=False)
class ECMP(_Components):
    """Ensemble Cross Model Patching, equation (5): each element uses one of its K patches independently."""

    def cells(self, layout: Layout) -> dict[str, Tensor]:
        if not self.learn_probs:
            return {}
        layer = layout.layer_cells()
        return {"layer": layer, "count": torch.bincount(layer, minlength=layout.layers)}

    def _cells(self, layout: Layout, components: Tensor) -> tuple[int, ...]:
        return tuple(components.shape[1:])

    def _of_cells(self, logits: Tensor, cells: Roles) -> Tensor:
        return self._elements(logits, cells)

    def _elements(self, of_cells: Tensor, cells: Roles) -> Tensor:
        return of_cells if of_cells.dim() == 1 else of_cells.index_select(-1, cells["layer"])


@dataclass(frozen=True)
class _Bernoulli(ABC):
    """Two centroids, M and 0, where 0 has probability p; the role `mean` (P,) holds (1 − p)·M."""

    p: float
    sigma: float = 0.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not _within(self.p, 1.0):
            raise ValueError(f"{name} needs a probability of dropping in [0, 1), not {self.p!r}.")
        _check_sigma(name, self.sigma)

    @abstractmethod
    def _keep(self, mean: Tensor, layout: Layout, generator: Generator | None) -> Tensor:
        """Draw a mask of the cells that are kept; biases always are."""

    @abstractmethod
    def _spread(self, cells: Roles, keep: Tensor) -> Tensor:
        """Expand `keep` from cells to elements: 1/(1 − p) if kept, 0 if dropped, 1 for biases."""

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
        """Compute equation (6) with p_k = (1 − p, p) on (M, 0), biases with one centroid, without the constant."""
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
        # The cell after the last unit is that of the biases.
        return torch.cat([keep / (1.0 - self.p), keep.new_ones(1)]).index_select(0, cells["unit"])


@dataclass(frozen=True)
class DropConnect(_Bernoulli):
    """DropConnect (Wan et al. 2013): each weight is dropped independently with probability p."""

    def cells(self, layout: Layout) -> dict[str, Tensor]:
        return {"bias": layout.bias_cells()}

    def _keep(self, mean: Tensor, layout: Layout, generator: Generator | None) -> Tensor:
        return uniform(mean.shape, mean, generator) >= self.p

    def _spread(self, cells: Roles, keep: Tensor) -> Tensor:
        return torch.where(cells["bias"], 1.0, keep / (1.0 - self.p))
