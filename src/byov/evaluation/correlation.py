"""Correlations of two numbers for each image, with bootstrap errors over the images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Return the linear correlation; nan where one of them does not vary."""
    x, y = x - x.mean(), y - y.mean()
    size = np.sqrt((x**2).sum() * (y**2).sum())
    return float((x * y).sum() / size) if size > 0 else float("nan")


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Return the correlation of ranks, ties at their mean rank."""
    from scipy.stats import rankdata

    return pearson(rankdata(x), rankdata(y))


def bootstrap_error(
    statistic: Callable[[np.ndarray, np.ndarray], float], x: np.ndarray, y: np.ndarray, bootstraps: int, seed: int
) -> float:
    """Return the standard deviation of a statistic over images drawn with replacement."""
    picks = np.random.default_rng(seed).integers(len(x), size=(bootstraps, len(x)))
    return float(np.nanstd([statistic(x[i], y[i]) for i in picks], ddof=1))
