"""The objective  loss + β·KL/N:  β over training, the choice of N, and how fast a mixture's components part."""

from __future__ import annotations

from math import cos, isfinite, pi
from typing import Literal

import torch

from byov.posterior.module import BayesianModule

Schedule = Literal["cosine", "linear", "constant"]


def beta(step: int, total: int, end: float = 1.0, start: float = 0.0, schedule: Schedule = "cosine") -> float:
    """Compute β at `step` of `total`: from `start` to `end` along one half-cosine, or linearly, or always `end`."""
    if total < 1:
        raise ValueError(f"A schedule needs at least one step, not {total}.")
    if start < 0 or end < 0:
        raise ValueError(f"β is at least 0, not {min(start, end)}.")
    done = min(max(step / total, 0.0), 1.0)
    if schedule == "constant":
        return end
    if schedule == "linear":
        return start + (end - start) * done
    if schedule == "cosine":
        return end + (start - end) * (1.0 + cos(pi * done)) / 2.0
    raise ValueError(f"A β schedule is 'cosine', 'linear' or 'constant', not {schedule!r}.")


def kl_scale(scale: Literal["dataset", "parameters", "none"] | float, dataset: int, parameters: int) -> float:
    """Return N, by which the KL is divided: the data set's size, the number of covered weights, 1, or a given number.

    It decides everything (at ρ = −10 the KL to N(0, 1) is about 4.5 nats per weight), so write it beside every result.
    """
    known: dict[object, float] = {"dataset": float(dataset), "parameters": float(parameters), "none": 1.0}
    number = known.get(scale, scale) if isinstance(scale, str) else scale
    if not isinstance(number, int | float) or isinstance(number, bool):
        raise ValueError(f"kl_scale is 'dataset', 'parameters', 'none' or a number, not {scale!r}.")
    if not number > 0:
        raise ValueError(f"kl_scale must be above 0, not {float(number)}.")
    return float(number)


@torch.no_grad()
def hold_apart(model: BayesianModule, share: float) -> None:
    """Scale how the gradients of a mixture's components differ from their mean; call it between `backward` and `step`.

    A step reaches one component in K. Its gradient g is g/K for the mean of all, and the rest tells it from the others.
    With `share` 0 all components take the same step, and their distance stays what they started with; with 1 nothing
    changes. In between, the mean learns as an unpatched weight would, and the components slowly of their own.
    """
    if not isinstance(model, BayesianModule):
        raise TypeError(f"hold_apart is for the components of a BayesianModule, not for {type(model).__name__}.")
    if not (isfinite(share) and share >= 0):
        raise ValueError(f"A share of at least 0 of the gradients is kept, not {share}.")
    factors = [factor for factor in model.factors if "components" in factor.roles]
    if not factors:
        raise ValueError("hold_apart is for Ensemble, EMP and ECMP: this model has no components.")
    for factor in factors:
        gradient = factor.get_parameter("components").grad
        if gradient is not None:
            mean = gradient.mean(0, keepdim=True)
            gradient.sub_(mean).mul_(share).add_(mean)
