"""Layer-wise σ and |μ|/σ over training (BYOV's Figures 3 and 6): about a hundred records in a run's `layers.jsonl`."""

from __future__ import annotations

from math import isfinite

from torch import nn

from byov.posterior import BayesianModule
from byov.posterior.layer_statistics import layer_statistics
from byov.train.journal import Journal

RECORDS = 100
"""How often a run looks at its posterior. A look costs a few passes over the weights: see benchmarks/layers.py."""
LEAST = 4
"""Steps between two looks, at least: after every step of a tiny network a look would take more than 1 % of the time."""


def due(step: int, total: int) -> bool:
    """Whether there is a record after `step` of `total` steps: at the start, every total/100 steps, and at the end.

    A function of the two alone, so that a run which was stopped and taken up again has the records of one that was not.
    """
    return step % interval(total) == 0 or step == total


def interval(total: int) -> int:
    """Steps from one record to the next."""
    return max(LEAST, round(total / RECORDS))


def record(journal: Journal, model: nn.Module, step: int, total: int) -> None:
    """Write the record of this step, if there is one; on the first rank only, for all have the same weights."""
    if journal.active and isinstance(model, BayesianModule) and due(step, total):
        journal.layers(step, {name: [_short(v) for v in row] for name, row in layer_statistics(model).items()})


def _short(value: float | None) -> float | None:
    """Six digits, and None for what JSON has no name for: the weights may have diverged."""
    if value is None or not isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")
