"""Schedules as functions of the step: the learning rate and the teacher's τ (β is `byov.beta`)."""

from __future__ import annotations

from math import cos, isfinite, pi


def warmup_cosine(step: int, total: int, warmup: int = 0, base: float = 1.0, end: float = 0.0) -> float:
    """Return the learning rate before update `step` (from 0): linear from 0 to `base`, then a half-cosine to `end`.

    As in BYOL's code, it is 0 at step 0 when there is a warm-up, `base` at step `warmup` and `end` at step `total`,
    one past the last update; without a warm-up it starts at `base`. With the default `base` and `end` it is a factor.
    """
    _check(total)
    if not 0 <= warmup <= total:
        raise ValueError(f"A warm-up of {warmup} steps does not fit into {total} steps.")
    if not (isfinite(base) and isfinite(end)):
        raise ValueError(f"A learning rate is a finite number, not {base} or {end}.")
    step = max(step, 0)
    if step < warmup:
        return base * step / warmup
    if warmup == total:
        return base
    done = min((step - warmup) / (total - warmup), 1.0)
    return end + (base - end) * (1.0 + cos(pi * done)) / 2.0


def tau(step: int, total: int, base: float, end: float = 1.0) -> float:
    """Return the teacher's decay τ_k = τ_K − (τ_K − τ₀)(cos(πk/K) + 1)/2: from τ₀ at step 0 to τ_K, BYOL's 1."""
    _check(total)
    _check_decay(base)
    _check_decay(end)
    done = min(max(step / total, 0.0), 1.0)
    return end - (end - base) * (cos(pi * done) + 1.0) / 2.0


def scale_decay(decay: float, factor: float) -> float:
    """Apply the EMA scaling rule of Busbridge et al. (2023): τ^κ keeps the teacher when the batch is scaled by κ."""
    _check_decay(decay)
    if not 0.0 < factor < float("inf"):
        raise ValueError(f"A batch is scaled by a number above 0, not {factor}.")
    return decay**factor


def _check(total: int) -> None:
    if total < 1:
        raise ValueError(f"A schedule needs at least one step, not {total}.")


def _check_decay(decay: float) -> None:
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"A decay lies between 0 and 1, not at {decay}.")
