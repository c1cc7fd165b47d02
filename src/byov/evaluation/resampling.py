"""Correlations and scores with bootstrap errors over the test images, which estimate the effect of another test set."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Generator, Tensor

from byov.metrics.functional.calibration import equal_width, top_label

RESAMPLES = 1000
TENTHS = 10


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Return the linear correlation; NaN if x or y is constant."""
    x, y = x - x.mean(), y - y.mean()
    size = np.sqrt((x**2).sum() * (y**2).sum())
    return float((x * y).sum() / size) if size > 0 else float("nan")


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Return the rank correlation; ties get their mean rank."""
    from scipy.stats import rankdata

    return pearson(rankdata(x), rankdata(y))


def with_error(
    statistic: Callable[[np.ndarray, np.ndarray], float], x: np.ndarray, y: np.ndarray, bootstraps: int, seed: int
) -> list[float]:
    """Return a statistic of two values per image, and its standard deviation over bootstraps of the images."""
    picks = np.random.default_rng(seed).integers(len(x), size=(bootstraps, len(x)))
    return [statistic(x, y), float(np.nanstd([statistic(x[i], y[i]) for i in picks], ddof=1))]


def tenths(uncertainty: Tensor, values: Tensor) -> list[float]:
    """Return the mean of `values` (N,) in each tenth of the images, from the most to the least certain."""
    ordered = values[uncertainty.argsort(stable=True)]
    return [float(part.mean()) for part in ordered.tensor_split(TENTHS) if len(part)]


class Resamples:
    """How often each of n images occurs in each resample. Scores on the same resamples can be compared in pairs."""

    def __init__(self, images: int, seed: int = 0, count: int = RESAMPLES) -> None:
        generator = Generator().manual_seed(seed)
        drawn = (torch.randint(images, (images,), generator=generator) for _ in range(count))
        self.counts = torch.stack([torch.bincount(each, minlength=images).float() for each in drawn])

    def scores(self, probs: Tensor, labels: Tensor, bins: int = 15) -> dict[str, Tensor]:
        """Return top-1, ECE and NLL (B,) of class probabilities (N, C) on each resample."""
        probs, labels = probs.cpu(), labels.cpu()
        confidence, correct = top_label(probs, labels)
        loss = -probs.gather(1, labels[:, None])[:, 0].clamp_min(torch.finfo(probs.dtype).tiny).log()
        top1, nll = (self.counts @ torch.stack([correct.float(), loss.float()], 1) / len(labels)).T
        ece = resampled_ece(confidence.float(), correct.float(), self.counts, bins)
        return {"top1": top1, "nll": nll, "ece": ece}


def resampled_ece(confidence: Tensor, correct: Tensor, counts: Tensor, bins: int) -> Tensor:
    """Return the ECE of each resample (B,); `counts` (B, n) says how often each image is drawn."""
    member = torch.nn.functional.one_hot(equal_width(confidence, bins), bins)
    return (counts @ (member * (confidence - correct)[:, None])).abs().sum(1) / counts.sum(1)


def error(resampled: Tensor) -> float:
    """Return the standard error, which is the standard deviation over resamples."""
    return resampled.double().std().item()
