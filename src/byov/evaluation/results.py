"""Evaluate a run and write a results file, which holds the protocol and all rows so far and is valid at any time."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from operator import methodcaller
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from byov.data.labelled import check_classes
from byov.data.shift import Shift
from byov.evaluation.retrieval import label_free_scores
from byov.evaluation.rows import Row, corruption_errors, evaluate, plan, shifts_for, strength_note, summarise
from byov.evaluation.scores import conventions
from byov.files import REAL, check_out, mismatch, read_json, write_json
from byov.metrics.functional._checks import check_whole
from byov.runs import Probed, Reading, Run
from byov.runs.run import Pretrained
from byov.ssl.linear_evaluation import Advance
from byov.train.config import flatten

KIND = "byov evaluate"
FREE = {"model.name", "data.root", "conventions.ece_floor", "conventions.representation"}
"""Keys that may differ between two protocols: paths, since digests identify the data, and the definitions of scores
that older files lack."""
MOST_BINS = 100_000
SCORES = {"*": (*REAL, type(None))}
ROW = {"shift": str, "severity": int, "at_mean": SCORES, "under_draws?": SCORES}
PROTOCOL = {
    "seed": int,
    "samples?": int,
    "bins": int,
    "shift": str,
    "shifts": [str],
    "severities": [int],
    "left_out": {"*": str},
    "data": {"name": str, "split": str, "digest": str, "images": int},
    "model": {"name": str, "kind": str, "digest": str, "posterior": bool},
    "conventions": {},
}
PATTERN = {
    "protocol": PROTOCOL,
    "environment": {"seconds": REAL},
    "finished": bool,
    "rows": [ROW],
    "summary": {},
}
"""The parts of a results file that are read."""


class Results:
    """The rows of one protocol in one file.

    An existing file with the same protocol is continued, starting from its `rows`. A file with another protocol raises,
    unless `force` allows overwriting it; it is overwritten when the first row is written.
    """

    def __init__(self, path: Path, protocol: dict[str, Any], force: bool = False) -> None:
        self.path, self.protocol = path, plain_json(protocol)
        self.rows: list[Row] = []
        self.seconds = 0.0
        self.representation: dict[str, Any] | None = None
        """R@1 and R-AUROC of a pretraining run; older files lack them."""
        check_out(path, force=True)  # a results file is continued, but a device is never replaced
        if path.exists() and not force:
            before = read(path, "choose another --out, or add --force")
            changed = difference(before["protocol"], self.protocol)
            if changed:
                raise FileExistsError(f"{path} holds results with {changed}: choose another --out, or add --force.")
            self.rows, self.seconds = before["rows"], before["environment"]["seconds"]
            self.representation = before.get("representation")

    def write(self, rows: Sequence[Row], environment: dict[str, Any], baseline: dict[str, Any] | None = None) -> None:
        """Write these rows and their summary, replacing the old file atomically."""
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
            **({} if self.representation is None else {"representation": self.representation}),
        }
        write_json(self.path, content)


def evaluate_run(
    run: Run,
    out: Path,
    shift: str = "none",
    severities: Sequence[int] = (),
    bins: int = 15,
    baseline: Path | None = None,
    force: bool = False,
    advance: Advance = lambda *_: None,
) -> Results:
    """Compute the rows that the file `out` lacks, and write it after each of them.

    Args:
        run: the run to evaluate, opened with its reading settings.
        out: the results file; a file with the same protocol is continued.
        shift: the kind of shift: none, augmentations or corruptions.
        severities: the severities of the shifts.
        bins: the number of bins of ECE and adaptive ECE.
        baseline: another results file, for corruption errors.
        force: overwrite a file with another protocol.
        advance: progress callback: the next step, rows done, all rows.
    """
    _check(out, bins)
    shifts, left_out = shifts_for(shift, run.images)
    protocol = evaluation_protocol(run, shift, shifts, left_out, severities, bins)
    other = None if baseline is None else read_baseline(baseline, protocol)
    results = Results(out, protocol, force)
    rows, start = {row.key: row for row in results.rows}, monotonic()
    wanted = plan(shifts, severities)
    environment = _environment(run.reading)

    def save() -> None:
        seconds = round(results.seconds + monotonic() - start, 3)
        results.write([rows[key] for key in wanted if key in rows], {**environment, "seconds": seconds}, other)

    def found(row: Row) -> None:
        rows[row.key] = row
        save()
        following = next((name for name, severity in wanted if (name, severity) not in rows), row.shift)
        advance(f"evaluating {following.replace('_', ' ')}", len(rows), len(wanted))

    unread = isinstance(run, Pretrained) and results.representation is None and len(run.images) > 1
    if len(rows) == len(wanted) and not unread:
        if other is not None:
            save()  # the baseline may be new
        return results
    advance("fitting the probe" if run.kind == "pretrain" else "evaluating", len(rows), len(wanted))
    if run.reading.temper and isinstance(run.predictor, Probed):
        environment["temperatures"] = run.predictor.probe.temperatures
    r, known = run.reading, results.rows
    options: dict[str, Any] = {"bins": bins, "seed": r.seed, "device": r.device, "known": known, "report": found}
    if len(rows) < len(wanted):
        evaluate(run.predictor, run.images.images, run.labels, shifts, severities, r.samples, **options)
    if isinstance(run, Pretrained) and unread:
        advance("scores without labels", len(rows), len(wanted))
        results.representation = label_free_scores(run)
        save()
    return results


def _check(out: Path, bins: int) -> None:
    """Raise if `out` is a folder, or if there are more bins than fit into memory."""
    check_whole(bins, "bins")
    if bins > MOST_BINS:
        raise ValueError(f"bins lie between 1 and {MOST_BINS:,}, not {bins}.")
    if out.is_dir():
        raise ValueError(f"{out} is a folder: --out takes the name of a file.")


def evaluation_protocol(
    run: Run, shift: str, shifts: dict[str, Shift], left_out: dict[str, str], severities: Sequence[int], bins: int
) -> dict[str, Any]:
    """Return everything that the rows depend on; raise if the images or classes do not match the run."""
    if run.train is not None:
        check_classes(run.train, run.images, run.reading.split)
    run.check(run.images)
    return {
        "seed": run.reading.seed,
        "samples": run.reading.samples if run.posterior else None,
        "strategy": run.reading.strategy,
        "bins": bins,
        "shift": shift,
        "severities": list(severities),
        "shifts": list(shifts),
        "left_out": left_out,
        **run.protocol(),
        "conventions": {**conventions(bins), "strengths": strength_note(shift, run.images)},
        "precision": _precision(run.reading),
    }


def _precision(reading: Reading) -> str | None:
    """Return None if all products are float32, which matches older files that lack this entry."""
    if reading.autocast is not None:
        return reading.precision
    cuda = torch.device(reading.device).type == "cuda"
    return "tf32" if cuda and torch.backends.cuda.matmul.allow_tf32 else None


def _environment(reading: Reading) -> dict[str, Any]:
    """Describe the machine and settings, which should not change a result but may be of interest."""
    place = torch.device(reading.device)
    device = torch.cuda.get_device_name(place) if place.type == "cuda" else f"cpu ({platform.machine()})"
    return {"device": device, "batch_size": reading.batch_size, "command": command_line()}


def plain_json(value: Any) -> Any:
    """Return a value as JSON reads it back: arrays and tensors become lists, and NaN and infinities None."""
    return json.loads(json.dumps(value, default=methodcaller("tolist")), parse_constant=lambda _: None)


def command_line() -> str:
    """Return the command line, to be recorded in a results file."""
    return shlex.join(["byov", *sys.argv[1:]])


def read(path: Path, advice: str = "name another file") -> dict[str, Any]:
    """Return the content of a results file, its rows as `Row`."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: {advice}.")
    try:
        content = read_json(path)
    except ValueError as error:
        raise FileExistsError(f"{str(error).removesuffix('.')}: {advice}.") from None
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise FileExistsError(f"{path} is not a file of `{KIND}`: {advice}.")
    if wrong := mismatch(content, PATTERN):
        raise FileExistsError(f"{path} is not a valid file of `{KIND}`, {wrong}: {advice}.")
    return {**content, "rows": [Row(**row) for row in content["rows"]]}


def read_baseline(path: Path, protocol: dict[str, Any]) -> dict[str, Any]:
    """Return a finished evaluation of the same images and corruptions, as the baseline of corruption errors."""
    if protocol["shift"] != "corruptions":
        raise ValueError("A baseline is for corruption errors: add --shift corruptions.")
    content = read(path)
    theirs = content["protocol"]
    if not content["finished"]:
        raise ValueError(f"{path} is not finished, so it cannot be a baseline: run its command again to finish it.")
    for key in ("shift", "severities", "shifts", "data.digest"):
        ours, other = flatten(protocol)[key], flatten(theirs)[key]
        if ours != other:
            raise ValueError(f"The baseline {path} has {key} = {_short(other)}, not {_short(ours)}.")
    return content


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return the first difference between two protocols in words; empty if there is none."""
    old, new = flatten(before), flatten(now)
    for key in [*new, *old]:
        if key not in FREE and old.get(key) != new.get(key):
            return f"{key} = {_short(old.get(key))}, not {_short(new.get(key))}"
    return ""


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"
