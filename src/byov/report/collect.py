"""From runs to numbers: what has been kept is read, what is missing is measured and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from byov.evaluation.results import KIND as EVALUATE
from byov.evaluation.rows import Row, plan
from byov.evaluation.summary import summarise
from byov.report.draws import convergence
from byov.report.kept import Kept
from byov.report.measure import Asked, Opened, identity, protocol, rows, settings, shifts_asked
from byov.report.parts import layers, pictures, pruning
from byov.report.sources import CHECKPOINT, Run, file_digest

PARTS: dict[str, Callable[[Opened], Any]] = {
    "gallery": pictures,
    "convergence": convergence,
    "pruning": pruning,
    "layers": layers,
}
"""What is measured beside the rows of scores, and by what."""
NOTHING: dict[str, Any] = {"none": True}
"""A part that a model without a posterior does not have: kept too, so that it is not looked for again."""


def collect(
    runs: Sequence[Run],
    asked: Asked,
    root: str | None = None,
    device: torch.device | str = "cpu",
    compute: bool = True,
    renew: bool = False,
    cache: Path | None = None,
) -> None:
    """Fill in the parts of each run that has a folder.

    Args:
        runs: in place; those of which only files are at hand stay as they are.
        asked: how they are read.
        root: the folder of the data sets; by default the recipe's.
        device: where it is computed.
        compute: False takes only what has been kept.
        renew: measure again what has been kept.
        cache: a folder for the parts of all runs, in the place of RUN/report.
    """
    console = Console(stderr=True)
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        folders = [run for run in runs if run.path is not None]
        whole = bar.add_task("runs", total=len(folders))
        for run in folders:
            assert run.path is not None
            assert run.file is not None
            checkpoint = file_digest(run.file)
            own = "report" if run.file.name == CHECKPOINT else f"report_{run.file.stem}"
            folder = run.path / own if cache is None else cache / checkpoint
            kept = Kept(folder, settings(asked, checkpoint))
            _fill(run, kept, asked, root, torch.device(device), compute, renew, bar)
            bar.advance(whole)


def _fill(
    run: Run,
    kept: Kept,
    asked: Asked,
    root: str | None,
    device: torch.device,
    compute: bool,
    renew: bool,
    bar: Progress,
) -> None:
    place = root or run.config.get("data", {}).get("root")
    opened: list[Opened] = []

    def model() -> Opened:
        """Opened when the first part is missing: a report of what is there already takes no time."""
        assert run.file is not None
        if not opened:
            opened.append(Opened(run.file, asked, place, device, run.name))
        return opened[0]

    run.parts["identity"] = kept.or_make("identity", lambda: identity(model()), renew)
    own = None if renew else kept.get("evaluation")
    if compute and (own is None or not own["finished"]):
        own = _evaluate(model(), kept, own, bar)
    if run.evaluation is not None:
        recorded = run.evaluation["protocol"]["model"]["digest"]
        if recorded != run.parts["identity"]["digest"]:
            run.notes.append(f"The file of results given for {run.name} is of other weights, and was set aside.")
            run.evaluation = None
    if own is not None and own["finished"]:
        run.parts["images"] = own["images"]
        if run.evaluation is None:
            run.evaluation = {"protocol": own["protocol"], "rows": [Row(**row) for row in own["rows"]]}
            run.parts["paired"] = True
    for part, make in PARTS.items():
        found = None if renew else kept.get(part)
        if found is None and compute:
            task = bar.add_task(f"{part} of {run.name}", total=1)
            made = make(model())
            found = kept.put(part, NOTHING if made is None else made)
            bar.remove_task(task)
        if found is not None and found != NOTHING:
            run.parts[part] = found


def _evaluate(run: Opened, kept: Kept, before: dict[str, Any] | None, bar: Progress) -> dict[str, Any]:
    """The rows of scores, with what was predicted for each image; what an interrupted report had done is taken up."""
    shifts, left_out = shifts_asked(run)
    wanted = plan(shifts, run.asked.severities if shifts else ())
    content: dict[str, Any] = before or {
        "evaluation": EVALUATE,
        "protocol": protocol(run, shifts, left_out),
        "finished": False,
        "rows": [],
        "images": {},
    }
    known = [Row(**row) for row in content["rows"]]
    task = bar.add_task(f"scores of {run.name}", total=len(wanted), completed=len(known))

    def done(row: Row, images: dict[str, Any]) -> None:
        content["rows"].append(asdict(row))
        content["images"][f"{row.shift}/{row.severity}"] = images
        kept.put("evaluation", content)
        bar.advance(task)

    rows(run, shifts, known, done)
    content["finished"] = True
    content = kept.put("evaluation", content)
    bar.remove_task(task)
    return content


def shifted(rows: Sequence[Row]) -> Row | None:
    """The mean over shifts of the means over severities; None where nothing was shifted."""
    means = summarise(rows)
    return means[-1] if means else None
