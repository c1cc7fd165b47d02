"""How sure a difference is: over seeds where there are several, else over the test images; how sure a share is."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

import numpy as np
from scipy import stats

Source = Literal["seeds", "images"]
LEVEL = 0.95
Z = 1.96
RESAMPLES = 1000
Array = Any
"""An array of numpy."""


@dataclass(frozen=True)
class Interval:
    """A value, and where it lies with 95 % confidence; `over` says what was varied, None if nothing could be."""

    value: float
    low: float | None = None
    high: float | None = None
    over: Source | None = None

    @classmethod
    def around(cls, value: float, reach: float, over: Source) -> Interval:
        """Return the interval that reaches as far on either side of a value."""
        return cls(value, value - reach, value + reach, over)

    @property
    def sign(self) -> int | None:
        """Return −1 or 1 where the interval leaves 0 out, 0 where it does not, None where there is no interval."""
        if self.low is None or self.high is None:
            return None
        return -1 if self.high < 0 else 1 if self.low > 0 else 0


def mean_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and its standard error; none of a single value."""
    return float(np.mean(values)), float(stats.sem(values)) if len(values) > 1 else None


def estimate(values: Sequence[float]) -> dict[str, float | None]:
    """Return the same by name, for the page."""
    return dict(zip(("value", "error"), mean_error(values), strict=True))


def over_seeds(first: Sequence[float], second: Sequence[float], paired: bool = False) -> Interval:
    """Estimate mean(second) − mean(first) by Welch's t: the seeds of the two have nothing to do with each other.

    `paired` are the same runs read in two ways, by Student's t of their differences. With no spread at all the interval
    is the value: equal numbers do not differ.
    """
    if len(first) < 2 or len(second) < 2:
        raise ValueError("An interval over seeds needs at least two runs on either side.")
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
    """What was predicted for the same n images under each of R conditions, such as shifts: (R, n) each."""

    confidence: Array
    correct: Array

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> ImageRecords:
        return cls(*(np.array([row[name] for row in rows], dtype=np.float64) for name in ("confidence", "correct")))


def resampled_ece(hits: ImageRecords, counts: Array, bins: int) -> Array:
    """Return for each resample the mean ECE over conditions; `counts` (B, n) says how often each image was drawn."""
    total = np.zeros(len(counts))
    edges = np.arange(1, bins) / bins
    for confidence, correct in zip(hits.confidence, hits.correct, strict=True):
        index = np.searchsorted(edges, confidence, side="left")  # open on the left, as in calibration_error
        member = np.eye(bins)[index] * (confidence - correct)[:, None]
        total += np.abs(counts @ member).sum(1) / counts.sum(1)
    return total / len(hits.confidence)


def over_images(first: Sequence[ImageRecords], second: Sequence[ImageRecords], bins: int) -> Interval:
    """Estimate ECE(second) − ECE(first), means over the runs of either side, by a bootstrap over images both saw.

    An image is drawn with all its shifted versions and by all models at once. It says how another test set would
    differ, not how another training run would. The reach is 1.96 standard deviations of the resamples, about the value
    itself: the resamples' own centre is too high, since resampling adds noise to every bin.
    """
    n = {hits.confidence.shape[1] for hits in (*first, *second)}
    if len(n) != 1:
        raise ValueError(f"A bootstrap compares models on the same images, not on {sorted(n)} of them.")
    size = n.pop()
    counts = np.random.default_rng(0).multinomial(size, np.full(size, 1 / size), RESAMPLES).astype(np.float64)
    counts = np.vstack([np.ones(size), counts])  # the first is the data themselves
    sides = [np.mean([resampled_ece(hits, counts, bins) for hits in each], 0) for each in (first, second) if each]
    difference = sides[-1] - sides[0] if len(sides) == 2 else sides[0]
    return Interval.around(float(difference[0]), Z * float(difference[1:].std(ddof=1)), "images")


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % score interval of a share among `count`: it stays in [0, 1], also where all are hits."""
    centre = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    reach = Z / (1 + Z**2 / count) * sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    return max(0.0, centre - reach), min(1.0, centre + reach)
