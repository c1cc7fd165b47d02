"""The teacher's two moments: exponential moving averages of the weights (the posterior mean μ) and of their spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from byov.posterior.factor import Factor
from byov.posterior.layout import occurrences


def keep_precision(fn: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """What `module.to(…)` does to a tensor, except that float32 never becomes a shorter float."""
    moved = fn(tensor)
    return tensor.to(moved.device) if moved.dtype.itemsize < tensor.dtype.itemsize else moved


class EMA(nn.Module):
    """EMA(μ), and with `variance` Σ_T = EMA(μ²) − EMA(μ)², of a model's weights, in float32.

    Of a BayesianModule it follows the posterior mean, never a draw: one flat tensor per factor, then the parameters
    that stay points; of a plain network its parameters. Σ_T is kept itself, by West's update

        m ← γ m + (1−γ) μ        v ← γ (v + (1−γ) (μ − m_old)²)

    which is the difference of the two EMAs exactly, without the cancellation that would leave nothing of it in float32
    (μ² ≈ 4e-4 against a variance of 1e-10).
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
        return super()._apply(lambda t: keep_precision(fn, t), recurse)

    @torch.no_grad()
    def update(self, model: nn.Module, decay: float) -> None:
        """One step with γ = `decay`; call it after the optimizer's step."""
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
        """EMA(μ²)."""
        return self.variance(index) + self.mean(index) ** 2

    def tensors(self, model: nn.Module) -> dict[str, Tensor]:
        """The averaged parameters by the network's own names, tied ones under each of theirs."""
        named: dict[str, Tensor] = {}
        factors = _factors(model)
        for i, factor in enumerate(factors):
            named |= factor.layout.with_ties(factor.layout.split(self.mean(i)))
        for i, (_, places) in enumerate(_points(model), start=len(factors)):
            named |= {name: self.mean(i) for name, _ in places}
        return named


def _factors(model: nn.Module) -> list[Factor]:
    from byov.posterior.module import BayesianModule  # here, because that module's priors are made of this one

    return model.factors if isinstance(model, BayesianModule) else []


def _points(model: nn.Module) -> Iterable[tuple[Tensor, list[tuple[str, nn.Module]]]]:
    return occurrences(model.get_submodule("net") if _factors(model) else model)


def _sources(model: nn.Module) -> list[Tensor]:
    return [factor.flat_mean() for factor in _factors(model)] + [parameter for parameter, _ in _points(model)]
