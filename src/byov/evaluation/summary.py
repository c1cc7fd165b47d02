"""What the rows of an evaluation come to: means over severities and shifts, and errors beside a baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byov.evaluation.rows import CLEAN, Row
from byov.evaluation.scores import Scores
from byov.metrics import functional as metrics

READINGS = ("at_mean", "under_draws")


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Return one row per shift with the means over its severities, at severity 0; last their mean, called "mean"."""
    names = list(dict.fromkeys(row.shift for row in rows if row.shift != CLEAN))
    each = [_mean(name, [row for row in rows if row.shift == name]) for name in names]
    return [*each, _mean("mean", each)] if each else []


def _mean(name: str, rows: Sequence[Row]) -> Row:
    drawn = [row.under_draws for row in rows if row.under_draws is not None]
    return Row(name, 0, _average([row.at_mean for row in rows]), _average(drawn) if drawn else None)


def _average(parts: Sequence[Scores]) -> Scores:
    """Return the mean of each score; None where one of them is not defined."""
    average: Scores = {}
    for name in parts[0]:
        values = [part.get(name) for part in parts]  # a row of an older file may lack one
        known = [value for value in values if value is not None]
        average[name] = sum(known) / len(known) if len(known) == len(values) else None
    return average


def corruption_errors(rows: Sequence[Row], baseline: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Compute mCE and relative mCE, in per cent of the baseline read at μ, of each reading of `rows`.

    `CE` holds them by corruption. A ratio that has no meaning, since a corruption does the baseline no harm, is None,
    and `note` says why.
    """
    other, other_clean = _errors(baseline, "at_mean")
    found: dict[str, dict[str, Any]] = {}
    for reading in READINGS:
        if getattr(rows[0], reading) is None:
            continue
        errors, clean = _errors(rows, reading)
        found[reading] = {"mCE": None, "relative_mCE": None, "CE": None, "note": None}
        try:
            each = metrics.corruption_error(errors, other)
            found[reading]["CE"] = {name: value.item() for name, value in each.items()}
            found[reading]["mCE"] = metrics.mean_corruption_error(errors, other).item()
            relative = metrics.relative_mean_corruption_error(errors, clean, other, other_clean)
            found[reading]["relative_mCE"] = relative.item()
        except ValueError as error:
            found[reading]["note"] = str(error)
    return found


def _errors(rows: Sequence[Row], reading: str) -> tuple[dict[str, list[float]], float]:
    """Return top-1 errors by corruption and severity, and on clean images."""
    errors: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda row: row.severity):
        errors.setdefault(row.shift, []).append(1 - getattr(row, reading)["top1"])
    return errors, errors.pop(CLEAN)[0]
