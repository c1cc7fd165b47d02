"""The two knobs of the objective  loss + β·KL/N:  β over training, and what N is."""

from __future__ import annotations

from math import cos, pi
from typing import Literal

Schedule = Literal["cosine", "linear", "constant"]


def beta(step: int, total: int, end: float = 1.0, start: float = 0.0, schedule: Schedule = "cosine") -> float:
    """β at `step` of `total`: from `start` to `end` along one half-cosine, or linearly; `constant` is always `end`."""
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
    """N, by which the KL is divided: the data set's size, the number of covered weights, 1, or the number given.

    It decides everything (at ρ = −10 the KL to N(0, 1) is about 4.5 nats per weight), so write it beside every result.
    """
    if scale == "dataset":
        number = float(dataset)
    elif scale == "parameters":
        number = float(parameters)
    elif scale == "none":
        number = 1.0
    elif isinstance(scale, int | float) and not isinstance(scale, bool):
        number = float(scale)
    else:
        raise ValueError(f"kl_scale is 'dataset', 'parameters', 'none' or a number, not {scale!r}.")
    if not number > 0:
        raise ValueError(f"kl_scale must be above 0, not {number}.")
    return number
