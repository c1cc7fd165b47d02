"""A reliability diagram from the confidences and hits that a report has kept of each image."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch

from byov.metrics.functional.calibration import bin_sums, diagram_of_bins, equal_width, error_of_bins

BINS = 15
Z = 1.96


def diagram(rows: Sequence[dict[str, Any]], bins: int = BINS) -> dict[str, Any]:
    """Of the bins that are not empty: count, mean confidence, accuracy, and its 95 % interval (Wilson's)."""
    confidence = torch.tensor([value for row in rows for value in row["confidence"]], dtype=torch.float32)
    correct = torch.tensor([value for row in rows for value in row["correct"]], dtype=torch.bool)
    sums = bin_sums(confidence, correct, equal_width(confidence, bins), bins)
    found = diagram_of_bins(sums)
    points = []
    for i in range(bins):
        count = int(found.count[i])
        if count:
            accuracy = float(found.accuracy[i])
            low, high = wilson(accuracy, count)
            point = {"count": count, "confidence": float(found.confidence[i]), "accuracy": accuracy}
            points.append({**point, "low": low, "high": high})
    return {"bins": bins, "images": len(confidence), "ece": error_of_bins(sums, "l1").item(), "points": points}


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % score interval of a share among `count`: it stays in [0, 1], also where all are hits."""
    centre = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    reach = Z / (1 + Z**2 / count) * sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    return max(0.0, centre - reach), min(1.0, centre + reach)
