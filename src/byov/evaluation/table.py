"""The rows of an evaluation as a table of at most 100 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from byov.evaluation.rows import CLEAN, Row
from byov.evaluation.summary import summarise

COLUMNS = {
    "top-1": ("top1", (100, 1)),
    "ECE": ("ece", (100, 2)),
    "NLL": ("nll", (1, 3)),
    "Brier": ("brier", (1, 3)),
}
"""Heading → the score, and what it is multiplied by and its decimals."""


def table(rows: Sequence[Row], title: str) -> Table:
    """Show clean images, every shift (the mean over its severities) and the mean of the shifts; shares in per cent."""
    clean, shifts = [row for row in rows if row.shift == CLEAN], summarise(rows)
    columns = list(_columns(any(row.under_draws is not None for row in rows), bool(shifts)))
    made = Table(title=escape(title), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    made.add_column("\nimages", no_wrap=True)
    for heading, line, *_ in columns:
        made.add_column(f"{heading}\n{line}", justify="right", no_wrap=True)
    for group in (clean, shifts[:-1], shifts[-1:]):
        for row in group:
            name = "mean of shifts" if row.shift == "mean" else row.shift.replace("_", " ")
            made.add_row(
                name, *(_cell((getattr(row, reading) or {}).get(key), *how) for *_, reading, key, how in columns)
            )
        made.add_section()
    return made


def error_lines(errors: dict[str, dict[str, Any]], baseline: str) -> Iterator[str]:
    """Yield the corruption errors, a line for each reading."""
    for reading, found in errors.items():
        words = "at μ" if reading == "at_mean" else "under draws"
        values = [
            f"{name} {_cell(found[key], 1, 1)} %"
            for name, key in (("mCE", "mCE"), ("relative mCE", "relative_mCE"))
            if found[key] is not None
        ]
        note = f" ({found['note']})" if found["note"] else ""
        yield f"{words}: {', '.join(values) or 'no corruption error'} of {baseline} at μ{note}"


def _columns(drawn: bool, shifted: bool) -> Iterator[tuple[str, str, str, str, tuple[float, int]]]:
    """Yield each column's heading and the line below it, its reading and score, and (factor, decimals)."""
    readings = {"at_mean": "μ", **({"under_draws": "draws"} if drawn else {})}
    for heading, (key, how) in COLUMNS.items():
        for reading, line in readings.items():
            yield heading if reading == "at_mean" else "", line, reading, key, how
    if shifted:
        yield "AUROC", "H, μ", "at_mean", "auroc_entropy", (1, 3)
    if shifted and drawn:
        yield "", "H", "under_draws", "auroc_entropy", (1, 3)
        yield "", "MI", "under_draws", "auroc_mutual_information", (1, 3)


def _cell(value: float | None, factor: float, digits: int) -> str:
    return "–" if value is None else f"{factor * value:.{digits}f}"
