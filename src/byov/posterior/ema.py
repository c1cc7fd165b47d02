"""The teacher's two moments: exponential moving averages of the posterior mean μ and of its spread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from byov.posterior.module import BayesianModule


def keep_precision(fn: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """What `module.to(…)` does to a tensor, except that float32 never becomes a shorter float."""
    moved = fn(tensor)
    return tensor.to(moved.device) if moved.dtype.itemsize < tensor.dtype.itemsize else moved


class EMA(nn.Module):
    """EMA(μ) and Σ_T = EMA(μ²) − EMA(μ)² of a model's posterior mean, in float32, one flat tensor each per factor.

    μ is the mean, never a draw. Σ_T is kept itself, by West's update

        m ← γ m + (1−γ) μ        v ← γ (v + (1−γ) (μ − m_old)²)

    which is the difference of the two EMAs exactly, without the cancellation that would leave nothing of it in float32
    (μ² ≈ 4e-4 against a variance of 1e-10). Parameters that stay points are averaged too: a teacher needs them.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.factors = 0
        for flat in self._sources(model):
            flat = flat.detach().float().clone()
            self.register_buffer(f"mean_{self.factors}", flat)
            self.register_buffer(f"variance_{self.factors}", torch.zeros_like(flat))
            self.factors += 1

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> EMA:
        return super()._apply(lambda t: keep_precision(fn, t), recurse)

    @staticmethod
    def _sources(model: nn.Module) -> list[Tensor]:
        from byov.posterior.module import BayesianModule

        if not isinstance(model, BayesianModule):
            raise TypeError(f"An EMA follows a BayesianModule, not {type(model).__name__}.")
        return [factor.flat_mean() for factor in model.factors] + [p.reshape(-1) for _, p in model.points()]

    @torch.no_grad()
    def update(self, model: BayesianModule, decay: float) -> None:
        """One step with γ = `decay`; call it after the optimizer's step."""
        sources = self._sources(model)
        if len(sources) != self.factors:
            raise ValueError("This EMA was made for a model with other parameters.")
        for i, mu in enumerate(sources):
            mean, variance = self.mean(i), self.variance(i)
            step = mu.float() - mean
            variance.addcmul_(step, step, value=1.0 - decay).mul_(decay)
            mean.add_(step, alpha=1.0 - decay)

    def mean(self, factor: int) -> Tensor:
        return self.get_buffer(f"mean_{factor}")

    def variance(self, factor: int) -> Tensor:
        return self.get_buffer(f"variance_{factor}")

    def second_moment(self, factor: int) -> Tensor:
        """EMA(μ²)."""
        return self.variance(factor) + self.mean(factor) ** 2

    def tensors(self, model: BayesianModule) -> dict[str, Tensor]:
        """The teacher's parameters by the network's own names, tied ones under each of theirs."""
        named: dict[str, Tensor] = {}
        for i, factor in enumerate(model.factors):
            named |= factor.layout.with_ties(factor.layout.split(self.mean(i)))
        for i, (names, point) in enumerate(model.tied_points(), start=len(model.q)):
            named |= dict.fromkeys(names, self.mean(i).view_as(point))
        return named
