"""How much the KL weighs in the objective  loss + β·KL/N,  as a recipe says it; and the L2 penalty in its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from math import isfinite
from typing import Literal

import torch
from torch import Tensor, nn

from byov.posterior import BayesianModule, objective
from byov.posterior.objective import Schedule
from byov.train.loop import Place


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """β over training and N; the part of a recipe's [posterior] that all kinds of training share."""

    prior_std: float = 1.0
    beta_start: float = 0.0
    beta_end: float = 1.0
    beta_schedule: Schedule = "cosine"
    kl_scale: Literal["dataset", "parameters", "none"] | float = "dataset"
    shared_draw: bool = False

    def __post_init__(self) -> None:
        if min(self.beta_start, self.beta_end) < 0:
            raise ValueError("posterior.beta_start and posterior.beta_end are at least 0.")

    def beta(self, place: Place) -> Tensor:
        """β at a step; a tensor, because a compiled graph would be made anew for every number."""
        value = objective.beta(place.step, place.total, self.beta_end, self.beta_start, self.beta_schedule)
        return torch.full((), value, device=place.device)  # filled there: a copy from the host would wait for the GPU


@dataclass(frozen=True)
class L2Config:
    """λ₁ … λ₄ of the patching paper's appendix C.1, times the batch's size; a recipe's [posterior.l2].

        loss = cross-entropy + 1/B · (λ₁ Σ‖M_ik‖² + λ₂ Σ‖m_jk‖² + λ₃ Σ‖M_i‖² + λ₄ Σ‖m_j‖²)

    over the weights and biases of all K components of patched layers, and those of shared layers. The paper has 0.001
    for all four. Unlike equation (6) it has neither ½ nor the mixing probabilities in it: both are in the λ. Of dropout
    and DropConnect the parameter learned is the mean, (1 − p)·M.
    """

    patched_weights: float = 1e-3
    patched_biases: float = 1e-3
    shared_weights: float = 1e-3
    shared_biases: float = 1e-3

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not (isfinite(value) and value >= 0):
                raise ValueError(f"posterior.l2.{each.name} is a λ of at least 0, not {value}.")

    def penalty(self, net: nn.Module) -> Tensor:
        """The sum in brackets."""
        return torch.stack([weight * tensor.square().sum() for weight, tensor in self._terms(net) if weight]).sum()

    def _terms(self, net: nn.Module) -> Iterator[tuple[float, Tensor]]:
        factors, shared = (net.factors, net.net) if isinstance(net, BayesianModule) else ([], net)
        yield 1.0, next(net.parameters()).new_zeros(())  # so that there is a sum where every λ is 0
        for factor in factors:
            flat = factor.roles["components" if "components" in factor.roles else "mean"]
            if self.patched_weights == self.patched_biases:
                yield self.patched_weights, flat
                continue
            for slot, part in zip(factor.layout.slots, torch.split(flat, factor.layout.sizes, dim=-1), strict=True):
                yield (self.patched_biases if slot.mask is None else self.patched_weights), part
        for name, point in shared.named_parameters():
            if point.requires_grad:
                yield (self.shared_biases if "bias" in name.rpartition(".")[2] else self.shared_weights), point
