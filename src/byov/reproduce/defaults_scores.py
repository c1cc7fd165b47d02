"""The scores of `byov reproduce defaults`: accuracy, calibration and uncertainty on clean, shifted and other data."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import torch
from torch import Tensor

from byov.metrics import functional as metrics
from byov.prediction.result import entropy

LEVELS = torch.arange(1, 20) / 20
"""The levels of the quantiles for the calibration of a regression."""

Scores = dict[str, float]


def classified(probs: Tensor, labels: Tensor) -> Scores:
    """Return error, NLL and ECE of class probabilities (N, C)."""
    return {
        "error": 1.0 - metrics.accuracy(probs, labels).item(),
        "nll": metrics.nll(probs, labels).item(),
        "ece": metrics.calibration_error(probs, labels).item(),
    }


def regressed(means: Tensor, precision: float, y: Tensor) -> Scores:
    """Return RMSE, −log density and calibration of a mixture of N(mean, 1/precision), means (S, N, 1).

    The calibration error is the mean over levels p of |share of y under its predicted p-quantile − p|.
    """
    below = torch.special.ndtr((y - means).double() * precision**0.5).mean(0).flatten()
    return {
        "error": metrics.rmse(means.mean(0), y).item(),
        "nll": -metrics.log_predictive_density(means[..., 0], y[:, 0], precision).item(),
        "ece": (torch.stack([(below <= p).double().mean() for p in LEVELS]) - LEVELS).abs().mean().item(),
    }


def uncertainties(draws: Tensor, regression: bool) -> tuple[Tensor, Tensor]:
    """Return entropy and mutual information of each input; for a regression both are the variance over draws."""
    if regression:  # the noise is constant, so the entropy ranks inputs as the variance does
        variance = draws.var(0, correction=0).flatten()
        return variance, variance
    total = entropy(draws.mean(0))
    expected = entropy(draws.flatten(0, 1)).view(draws.shape[:2]).mean(0)
    return total, (total - expected).clamp_min(0)


def auroc(known: tuple[Tensor, Tensor], foreign: tuple[Tensor, Tensor]) -> Scores:
    """Return how well each measure separates other data from the test set."""
    each = [metrics.ood_auroc(a, b).item() for a, b in zip(known, foreign, strict=True)]
    return {"auroc_entropy": each[0], "auroc_information": each[1]}


def averaged(each: Sequence[Scores]) -> Scores:
    """Return the mean of each number."""
    return {name: mean(scores[name] for scores in each) for name in each[0]}
