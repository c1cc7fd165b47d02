"""The priors N(0, I), N(μ_T, I) and N(μ_T, Σ_T) that q is pulled towards (section 3 of BYOV), and the teacher's EMA.

The teacher is an exponential moving average of the student's posterior mean μ; the variance of μ is kept too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from byov.posterior.factor import Factor
from byov.posterior.layout import Layout, occurrences

if TYPE_CHECKING:
    from byov.posterior.module import BayesianModule

Moment = float | Tensor | Mapping[str, Tensor]


def _keep_precision(fn: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """Apply `fn` as `module.to(…)` does, but never reduce the precision of float32."""
    moved = fn(tensor)
    return tensor.to(moved.device) if moved.dtype.itemsize < tensor.dtype.itemsize else moved


class EMA(nn.Module):
    """EMA(μ) of a model's weights, and with `variance` also Σ_T = EMA(μ²) − EMA(μ)², in float32.

    For a BayesianModule it follows the posterior mean, never a draw: one flat tensor per factor, then the parameters
    without a posterior. For a plain network it follows the parameters. Σ_T itself is stored, by West's update

        m ← γ m + (1−γ) μ        v ← γ (v + (1−γ) (μ − m_old)²)

    This equals the difference of the two EMAs exactly, without the cancellation that would leave nothing of it in
    float32 (μ² ≈ 4e-4 against a variance of 1e-10).
    """

    def __init__(self, model: nn.Module, variance: bool = True) -> None:
        super().__init__()
        sources = _sources(model)
        self.count, self.keeps_variance = len(sources), variance
        for i, source in enumerate(sources):
            mean = source.detach().float().clone()
            self.register_buffer(f"mean_{i}", mean)
            if variance:
                self.register_buffer(f"variance_{i}", torch.zeros_like(mean))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> EMA:
        return super()._apply(lambda t: _keep_precision(fn, t), recurse)

    @torch.no_grad()
    def update(self, model: nn.Module, decay: float) -> None:
        """Take one step with γ = `decay`; call it after the optimizer's step."""
        sources = [source.float() for source in _sources(model)]
        means = [self.mean(i) for i in range(self.count)]
        if [s.shape for s in sources] != [m.shape for m in means]:
            raise ValueError("This EMA was made for a model with other parameters.")
        steps = torch._foreach_sub(sources, means)
        if self.keeps_variance:
            variances = [self.variance(i) for i in range(self.count)]
            torch._foreach_addcmul_(variances, steps, steps, value=1.0 - decay)
            torch._foreach_mul_(variances, decay)
        torch._foreach_add_(means, steps, alpha=1.0 - decay)

    def mean(self, index: int) -> Tensor:
        return self.get_buffer(f"mean_{index}")

    def variance(self, index: int) -> Tensor:
        if not self.keeps_variance:
            raise ValueError("This EMA keeps no variance: make it with EMA(model, variance=True).")
        return self.get_buffer(f"variance_{index}")

    def second_moment(self, index: int) -> Tensor:
        """Return EMA(μ²)."""
        return self.variance(index) + self.mean(index) ** 2

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the averaged parameters by the network's own names, tied ones under each of their names."""
        named: dict[str, Tensor] = {}
        factors = _factors(model)
        for i, factor in enumerate(factors):
            named |= factor.layout.with_ties(factor.layout.split(self.mean(i)))
        for i, (_, places) in enumerate(_points(model), start=len(factors)):
            named |= {name: self.mean(i) for name, _ in places}
        return named


def _factors(model: nn.Module) -> list[Factor]:
    """Return the factors of a BayesianModule; a plain network has none."""
    q = getattr(model, "q", None)
    return [factor for factor in q if isinstance(factor, Factor)] if isinstance(q, nn.ModuleList) else []


def _points(model: nn.Module) -> Iterable[tuple[Tensor, list[tuple[str, nn.Module]]]]:
    return occurrences(model.get_submodule("net") if _factors(model) else model)


def _sources(model: nn.Module) -> list[Tensor]:
    return [factor.flat_mean() for factor in _factors(model)] + [parameter for parameter, _ in _points(model)]


class Prior(nn.Module):
    """A Gaussian over the weights. It is a module, so that it is saved and moved with its model."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Prior:
        return super()._apply(lambda t: _keep_precision(fn, t), recurse)

    @abstractmethod
    def moments(self, factor: int, layout: Layout) -> tuple[Tensor | float, Tensor | float]:
        """Return mean and standard deviation for the weights of one factor, as numbers or flat tensors (P,)."""

    @abstractmethod
    def point_moments(self, index: int, name: str, shape: tuple[int, ...]) -> tuple[Tensor | float, Tensor | float]:
        """Return the same for a parameter without a posterior, indexed after the factors; both broadcast to it."""

    def attach(self, model: BayesianModule) -> None:
        """Set up what depends on the model of this prior; the teacher priors create their EMA here."""

    @staticmethod
    def check(prior: object) -> None:
        """Raise unless `prior` is a prior."""
        if not isinstance(prior, Prior):
            raise ValueError(f"A prior is byov.Normal, byov.TeacherMean or byov.TeacherNormal, not {prior!r}.")


class Normal(Prior):
    """N(mean, std²), each a number, or tensors by parameter name (with shapes that broadcast to the parameter's).

    A mapping must name every parameter with a posterior, and for `kl(points=True)` also those without one. A separate
    precision τ_i for each layer (patching paper, equations 2 and 6) is a std of τ_i^−½.
    """

    def __init__(self, mean: Moment = 0.0, std: Moment = 1.0) -> None:
        super().__init__()
        self._by_name: dict[str, bool] = {}
        self._keep("mean", mean)
        self._keep("std", std)
        for value in self._buffers.values():
            if value is not None and not torch.isfinite(value).all():
                raise ValueError("A normal prior needs finite moments.")
        if any((value <= 0).any() for key, value in self.named_buffers() if key.split("/")[0] == "std"):
            raise ValueError("A normal prior needs a standard deviation above 0.")

    def _keep(self, role: str, value: Moment) -> None:
        self._by_name[role] = isinstance(value, Mapping)
        if isinstance(value, Mapping):
            for name, tensor in value.items():
                # A buffer's name must not contain dots.
                self.register_buffer(f"{role}/{name.replace('.', '/')}", torch.as_tensor(tensor, dtype=torch.float32))
        elif isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1):
            self.register_buffer(role, torch.as_tensor(value, dtype=torch.float32).reshape(()))
        else:
            raise ValueError(f"A prior's {role} is a number or a mapping from parameter names to tensors.")

    def _of(self, role: str, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the moment of one parameter, in its shape."""
        if not self._by_name[role]:
            return self.get_buffer(role)
        value = self._buffers.get(f"{role}/{name.replace('.', '/')}")
        if value is None:
            raise ValueError(f"The prior has no {role} for {name}.")
        try:
            return value.expand(shape)
        except RuntimeError:
            own = tuple(value.shape)
            raise ValueError(f"The prior's {role} for {name} has shape {own}, the parameter {shape}.") from None

    def _moment(self, role: str, layout: Layout) -> Tensor:
        if not self._by_name[role]:
            return self.get_buffer(role)
        return layout.flatten({slot.name: self._of(role, slot.name, slot.shape) for slot in layout.slots})

    def moments(self, factor: int, layout: Layout) -> tuple[Tensor, Tensor]:
        return self._moment("mean", layout), self._moment("std", layout)

    def point_moments(self, index: int, name: str, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        return self._of("mean", name, shape), self._of("std", name, shape)

    def attach(self, model: BayesianModule) -> None:
        for i, factor in enumerate(model.factors):
            self.moments(i, factor.layout)  # raises where a name is missing or a shape does not fit

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v.item():g}" if v.numel() == 1 else k for k, v in self.named_buffers())


class _Teacher(Prior):
    """A prior whose mean is the teacher's: an EMA of the posterior mean, updated by the caller."""

    ema: EMA | None

    def __init__(self, ema: EMA | None = None) -> None:
        super().__init__()
        if ema is not None and not isinstance(ema, EMA):
            raise ValueError(f"A teacher prior takes a byov.EMA, not {type(ema).__name__}.")
        self.ema = ema

    def attach(self, model: BayesianModule) -> None:
        if self.ema is None:
            self.ema = EMA(model)

    def moments(self, factor: int, layout: Layout) -> tuple[Tensor | float, Tensor | float]:
        return self._teacher(factor)

    def point_moments(self, index: int, name: str, shape: tuple[int, ...]) -> tuple[Tensor | float, Tensor | float]:
        return self._teacher(index)

    @abstractmethod
    def _teacher(self, index: int) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation of a factor, or of a point counted after them."""

    def _fed(self) -> EMA:
        if self.ema is None:
            raise ValueError(
                f"{type(self).__name__} has no teacher yet: create it with byov.EMA(model), or pass it to bayesianize."
            )
        return self.ema


class TeacherMean(_Teacher):
    """N(μ_T, std²): the student is expected to be at the teacher's weights."""

    def __init__(self, ema: EMA | None = None, std: float = 1.0) -> None:
        super().__init__(ema)
        if not std > 0:
            raise ValueError(f"A teacher prior needs a standard deviation above 0, not {std}.")
        self.register_buffer("std", torch.tensor(float(std)))

    def _teacher(self, index: int) -> tuple[Tensor, Tensor]:
        return self._fed().mean(index), self.get_buffer("std")


class TeacherNormal(_Teacher):
    """N(μ_T, Σ_T) with Σ_T = EMA(μ²) − EMA(μ)², how far the teacher has moved; `floor` is the smallest variance."""

    def __init__(self, ema: EMA | None = None, floor: float = 1e-6) -> None:
        super().__init__(ema)
        if not floor > 0:
            raise ValueError(f"A teacher prior needs a variance floor above 0, not {floor}.")
        self.register_buffer("floor", torch.tensor(float(floor)))

    def _teacher(self, index: int) -> tuple[Tensor, Tensor]:
        ema = self._fed()
        return ema.mean(index), ema.variance(index).clamp_min(self.get_buffer("floor")).sqrt()
