"""The rows of an evaluation as a table of at most 100 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from byov.evaluation.rows import CLEAN, Row
from byov.evaluation.scores import Scores
from byov.evaluation.summary import summarise

COLUMNS = {"top-1": ("top1", 100, 1), "ECE": ("ece", 100, 2), "NLL": ("nll", 1, 3), "Brier": ("brier", 1, 3)}
"""Heading → the score, what it is multiplied by, and its decimals."""


def table(rows: Sequence[Row], title: str) -> Table:
    """Clean images, every shift as the mean over its severities, and the mean of the shifts; shares in per cent."""
    clean, shifts = [row for row in rows if row.shift == CLEAN], summarise(rows)
    drawn = any(row.under_draws is not None for row in rows)
    made = Table(title=escape(title), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title_justify="left")
    made.add_column("\nimages", no_wrap=True)
    for heading, line in _headings(drawn, bool(shifts)):
        made.add_column(f"{heading}\n{line}", justify="right", no_wrap=True)
    for group in (clean, shifts[:-1], shifts[-1:]):
        for row in group:
            name = "mean of shifts" if row.shift == "mean" else row.shift.replace("_", " ")
            made.add_row(name, *_cells(row, drawn, bool(shifts)))
        made.add_section()
    return made


def error_lines(errors: dict[str, dict[str, Any]], baseline: str) -> Iterator[str]:
    """The corruption errors, a line for each reading."""
    for reading, found in errors.items():
        words = "at μ" if reading == "at_mean" else "under draws"
        values = [
            f"{name} {_cell(found[key], 1, 1)} %"
            for name, key in (("mCE", "mCE"), ("relative mCE", "relative_mCE"))
            if found[key] is not None
        ]
        note = f" ({found['note']})" if found["note"] else ""
        yield f"{words}: {', '.join(values) or 'no corruption error'} of {baseline} at μ{note}"


def _headings(drawn: bool, shifted: bool) -> Iterator[tuple[str, str]]:
    for name in COLUMNS:
        yield name, "μ"
        if drawn:
            yield "", "draws"
    if shifted:
        yield "AUROC", "H, μ"
        if drawn:
            yield "", "H"
            yield "", "MI"


def _cells(row: Row, drawn: bool, shifted: bool) -> Iterator[str]:
    under = row.under_draws or {}
    for key, factor, digits in COLUMNS.values():
        yield _cell(row.at_mean.get(key), factor, digits)
        if drawn:
            yield _cell(under.get(key), factor, digits)
    if shifted:
        yield from (_cell(part.get(f"auroc_{by}"), 1, 3) for part, by in _uncertainties(row.at_mean, under, drawn))


def _uncertainties(at_mean: Scores, under: Scores, drawn: bool) -> list[tuple[Scores, str]]:
    found = [(at_mean, "entropy")]
    return [*found, (under, "entropy"), (under, "mutual_information")] if drawn else found


def _cell(value: float | None, factor: float, digits: int) -> str:
    return "–" if value is None else f"{factor * value:.{digits}f}"
