"""A file of results: the protocol they were found by, and the rows so far; whole at every moment."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from byov.evaluation.rows import Row, plan
from byov.evaluation.summary import corruption_errors, summarise

KIND = "byov evaluate"
FREE = {"model.name", "data.root", "conventions.ece_floor"}
"""What may differ between two protocols: names of places, where the digests agree; and what a score that older files
lack stands for."""


class Results:
    """The rows of one protocol in one file.

    A file of the same protocol is taken up again, its rows are `rows`. Another one is refused, unless `force` says that
    it may be overwritten; that happens with the first row that is written.
    """

    def __init__(self, path: Path, protocol: dict[str, Any], force: bool = False) -> None:
        self.path, self.protocol = path, json.loads(json.dumps(protocol))
        self.rows: list[Row] = []
        self.seconds = 0.0
        if path.exists() and not force:
            before = read(path, "choose another --out, or add --force")
            changed = difference(before["protocol"], self.protocol)
            if changed:
                raise FileExistsError(f"{path} holds results with {changed}: choose another --out, or add --force.")
            self.rows, self.seconds = before["rows"], before["environment"]["seconds"]

    def write(self, rows: Sequence[Row], environment: dict[str, Any], baseline: dict[str, Any] | None = None) -> None:
        """The file with these rows and what they come to, in the place of the old one at once."""
        self.rows = list(rows)
        wanted = plan(self.protocol["shifts"], self.protocol["severities"])
        finished = [row.key for row in rows] == wanted
        summary: dict[str, Any] = {"shifts": [asdict(row) for row in summarise(rows)]} if finished else {}
        if baseline is not None and finished:
            errors = corruption_errors(rows, baseline["rows"])
            about = {"reading": "at_mean", "model": baseline["protocol"]["model"], "seed": baseline["protocol"]["seed"]}
            summary |= {"corruption_errors": errors, "baseline": about}
        content = {
            "kind": KIND,
            "protocol": self.protocol,
            "environment": environment,
            "finished": finished,
            "rows": [asdict(row) for row in rows],
            "summary": summary,
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.partial")
        try:
            partial.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(partial, self.path)
        finally:
            partial.unlink(missing_ok=True)


def read(path: Path, advice: str = "name another file") -> dict[str, Any]:
    """What a file of results holds, its rows as `Row`."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: {advice}.")
    if not path.is_file():
        raise FileNotFoundError(f"There is no file of results at {path}.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["kind"] != KIND:
            raise ValueError(content["kind"])
        return {**content, "rows": [Row(**row) for row in content["rows"]]}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FileExistsError(f"{path} is not a file of `{KIND}`: {advice}.") from None


def read_baseline(path: Path, protocol: dict[str, Any]) -> dict[str, Any]:
    """A finished evaluation under the same corruptions of the same images, to measure corruption errors by."""
    if protocol["shift"] != "corruptions":
        raise ValueError("A baseline is for corruption errors: add --shift corruptions.")
    content = read(path)
    theirs = content["protocol"]
    if not content["finished"]:
        raise ValueError(f"{path} is not finished, so it cannot be a baseline: run its command again.")
    for key in ("shift", "severities", "shifts", "data.digest"):
        ours, other = _flat(protocol)[key], _flat(theirs)[key]
        if ours != other:
            raise ValueError(f"The baseline {path} has {key} = {_short(other)}, not {_short(ours)}.")
    return content


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """The first thing in which two protocols differ, in words; empty if in none."""
    old, new = _flat(before), _flat(now)
    for key in [*new, *old]:
        if key not in FREE and old.get(key) != new.get(key):
            return f"{key} = {_short(old.get(key))}, not {_short(new.get(key))}"
    return ""


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
