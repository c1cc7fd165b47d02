"""Confidence intervals: of a difference over seeds or over test images, and of a share."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from byov.evaluation.resampling import RESAMPLES, resampled_ece

Source = Literal["seeds", "images"]
LEVEL = 0.95
Z = 1.96


@dataclass(frozen=True)
class Interval:
    """A value and its 95 % confidence interval; `over` is what was resampled, or None if there is no interval."""

    value: float
    low: float | None = None
    high: float | None = None
    over: Source | None = None

    @classmethod
    def around(cls, value: float, reach: float, over: Source) -> Interval:
        """Return the interval value ± reach."""
        return cls(value, value - reach, value + reach, over)

    @property
    def sign(self) -> int | None:
        """Return −1 or 1 if the interval excludes 0, 0 if it includes 0, and None without an interval."""
        if self.low is None or self.high is None:
            return None
        return -1 if self.high < 0 else 1 if self.low > 0 else 0


def mean_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and its standard error, which is None for a single value."""
    return float(np.mean(values)), float(stats.sem(values)) if len(values) > 1 else None


def estimate(values: Sequence[float]) -> dict[str, float | None]:
    """Return `mean_error` as a dictionary, for the page."""
    return dict(zip(("value", "error"), mean_error(values), strict=True))


def over_seeds(first: Sequence[float], second: Sequence[float], paired: bool = False) -> Interval:
    """Estimate mean(second) − mean(first) with Welch's t-test, since the seeds of the two sides are independent.

    With `paired`, both sides are the same runs read in two ways, and Student's t of their differences is used. Without
    any spread the interval is the value itself.
    """
    if len(first) < 2 or len(second) < 2:
        raise ValueError("An interval over seeds needs at least two runs on each side.")
    value = float(np.mean(second) - np.mean(first))
    spread = [np.ptp(np.subtract(second, first))] if paired else [np.ptp(first), np.ptp(second)]
    if not any(spread):
        return Interval.around(value, 0.0, "seeds")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # scipy's, where one side has no spread
        test = stats.ttest_rel(second, first) if paired else stats.ttest_ind(second, first, equal_var=False)
    low, high = test.confidence_interval(LEVEL)
    return Interval(value, float(low), float(high), "seeds")


@dataclass(frozen=True)
class ImageRecords:
    """Predictions for the same n images under each of R conditions, such as shifts: (R, n) each."""

    confidence: Tensor
    correct: Tensor

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> ImageRecords:
        columns = ([row[name] for row in rows] for name in ("confidence", "correct"))
        return cls(*(torch.tensor(column, dtype=torch.float64) for column in columns))

    def ece(self, counts: Tensor, bins: int) -> Tensor:
        """Return the mean ECE over conditions for each resample; `counts` (B, n) says how often each image is drawn."""
        each = zip(self.confidence, self.correct, strict=True)
        return torch.stack([resampled_ece(*condition, counts, bins) for condition in each]).mean(0)


def over_images(first: Sequence[ImageRecords], second: Sequence[ImageRecords], bins: int) -> Interval:
    """Estimate ECE(second) − ECE(first), each averaged over runs, by a bootstrap over the images common to all.

    An image is drawn with all its shifted versions and for all models at once. The interval estimates the effect of
    another test set, not of another training run. It reaches 1.96 standard deviations of the resamples to each side of
    the value itself: the mean of the resamples is too high, since resampling adds noise to every bin.
    """
    sizes = {hits.confidence.shape[1] for hits in (*first, *second)}
    if len(sizes) != 1:
        raise ValueError(f"A bootstrap compares models on the same images, not on {sorted(sizes)} of them.")
    size = sizes.pop()
    drawn = torch.from_numpy(np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), RESAMPLES))
    counts = torch.cat([torch.ones(1, size), drawn]).double()  # the first row is the data itself
    sides = [torch.stack([hits.ece(counts, bins) for hits in each]).mean(0) for each in (first, second) if each]
    difference = sides[-1] - sides[0] if len(sides) == 2 else sides[0]
    return Interval.around(float(difference[0]), Z * float(difference[1:].std()), "images")


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a share among `count`, which stays in [0, 1] even if all are hits."""
    centre = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    reach = Z / (1 + Z**2 / count) * sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    return max(0.0, centre - reach), min(1.0, centre + reach)
