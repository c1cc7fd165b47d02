"""The first lines of the page: of what data, when, by which byov, and what each model costs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from typing import Any

import byov
from byov.report.groups import Group
from byov.report.sources import ReportedRun


def about(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the data of the first evaluation, today's date, and byov's version and commit."""
    data: dict[str, Any] = next((run.protocol["data"] for group in groups for run in group.evaluated), {})
    known = {key: data[key] for key in ("name", "split", "images") if key in data}
    return {"data": known, "date": today().isoformat(), "commit": commit()}


def today() -> date:
    """Return the day of the clock, or that of SOURCE_DATE_EPOCH, for files that are made again to the byte."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    return datetime.fromtimestamp(int(epoch), UTC).date() if epoch.isdecimal() else datetime.now().date()


@cache
def commit() -> str | None:
    """Return the commit of byov's own clone, "-dirty" if files have changed; None if it was installed otherwise."""
    clone = Path(byov.__file__).parents[2]
    if shutil.which("git") is None or not (clone / ".git").exists():
        return None
    words = ["git", "-C", str(clone), "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def cost(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return of each model what it takes: parameters, seconds of training (the mean over runs), passes to predict."""
    found = []
    for group in groups:
        sizes = group.runs[0].parts.get("identity", {})
        seconds = [value for run in group.runs if (value := training_seconds(run)) is not None]
        draws = group.evaluated[0].protocol.get("samples") if group.evaluated and group.posterior else None
        head = group.runs[0].parts.get("strategy") == "head"
        found.append(
            {
                "parameters": sizes.get("parameters", sizes.get("weights")),
                "seconds": sum(seconds) / len(seconds) if seconds else None,
                "passes": f"1, and {draws} of the head" if draws and head else str(draws or 1),
            }
        )
    return found


def training_seconds(run: ReportedRun) -> float | None:
    """Return how long a run was trained, by its log."""
    log = [] if run.header is None else run.header.records("log.jsonl")
    times = [line["seconds"] for line in log if isinstance(line.get("seconds"), int | float)]
    return times[-1] if times else None
