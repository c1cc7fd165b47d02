"""How much the KL weighs in the objective  loss + β·KL/N,  as a recipe says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from byov.posterior import objective
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
