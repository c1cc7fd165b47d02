"""Numbers and settings as the page writes them."""

from __future__ import annotations

import json
from typing import Any

DASH = "–"

MISSING = {
    "verdict": ("The answer needs scores of at least one model", "byov report RUN"),
    "numbers": ("No scores have been recorded", "byov evaluate RUN --shift augmentations --out results.json"),
    "calibration": ("What was predicted for each image has not been recorded", "byov report RUN"),
    "ood": ("No scores under shift have been recorded", "byov evaluate RUN --shift augmentations --out results.json"),
    "pruning": ("No network has been pruned yet", "byov report RUN"),
    "layers": (
        "There is no run with a posterior whose layers were read",
        "byov pretrain --set posterior.family=gaussian",
    ),
    "convergence": ("There is no run with a posterior that was read under draws", "byov report RUN --samples 30"),
    "representation": ("No embeddings of a byov pretrain run have been read", "byov report RUN"),
    "gallery": ("No images have been read yet", "byov report RUN"),
    "training": ("There is no log of the training", "byov pretrain --run RUN"),
    "config": ("There is no run folder, whose checkpoint holds the recipe", "byov report RUN"),
    "protocol": ("Nothing has been evaluated, so there is no protocol", "byov report RUN"),
}
"""For a section without numbers: why, and the command that makes them."""


def cell(value: Any, unit: str = "", like: float | None = None, sign: str = "") -> str:
    """Write a score, in per cent where it is a share; with as many decimals as another one, if that is given.

    There is one more decimal where a number is small.
    """
    if value is None:
        return DASH
    size = abs(value if like is None else like)
    factor, digits = (100, 2) if unit == "%" else (1, 4 if size < 0.02 else 3)
    return f"{factor * value:{sign}.{digits}f}"


def signed(value: float | None, unit: str = "", like: float | None = None) -> str:
    """Write a difference with its sign, and a minus that is one; `like` is as in `cell`."""
    return cell(value, unit, like, "+").replace("-", "−")


def setting(value: Any) -> str:
    """Write a setting as a recipe would write it."""
    if value is None:
        return DASH
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ", ".join(setting(item) for item in value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, ensure_ascii=False)


def count(value: Any) -> str:
    """Write a whole number with its thousands apart."""
    return f"{value:,}" if isinstance(value, int) else DASH if value is None else str(value)
