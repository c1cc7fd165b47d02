"""The demo: BYOL and BYOV on scikit-learn's digits, from raw images to probes and a report."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from byov.evaluation.probing import ProbedRun, probe_run
from byov.files import replacing, write_json
from byov.report.collect import Request
from byov.report.content import ALL
from byov.report.drawing import COLOURS, canvas
from byov.report.page import report as make_report
from byov.report.tables import columns, probes
from byov.runs import Reading
from byov.ssl.pretrain import Pretrain, start
from byov.train.config import load_config

DRAWS, FIT_DRAWS = 30, 8
"""The draws for predicting, and for fitting a probe."""


def recipe(posterior: bool, epochs: int) -> Pretrain:
    """Load recipes/digits_byov.toml, or its twin without a posterior, with this number of epochs."""
    name = "digits_byov" if posterior else "digits_byol"
    return load_config(Pretrain, name, [f"train.epochs={epochs}", f"train.warmup={min(3, epochs)}"])


def demo(out: Path | None = None, epochs: int = 40) -> None:
    """Pretrain and probe both, print the tables and write the page; keep everything in the folder `out`, if given."""
    console, started = Console(), monotonic()
    report = Path("runs/demo") if out is None else out
    recipes = {"BYOL": recipe(False, epochs), "BYOV": recipe(True, epochs)}
    prepare_folder(report, kept=out is not None)
    with tempfile.TemporaryDirectory() as scratch:
        folders = {name: (out or Path(scratch)) / name.lower() for name in recipes}
        runs: dict[str, ProbedRun] = {}
        for name, settings in recipes.items():
            console.print(f"Pretraining {name} on 1,347 digits, without their labels …")
            start(settings, folders[name])
            runs[name] = probe_run(folders[name], samples=DRAWS, fit_samples=FIT_DRAWS, device="cpu")
        console.print(probes({name: run.result for name, run in runs.items()}))
        results = {name: {"scores": run.result.numbers(), "protocol": run.protocol} for name, run in runs.items()}
        page = make_report(
            list(folders.values()),
            report / "report.html",
            Request(Reading(DRAWS, fit_samples=FIT_DRAWS)),
            title="byov demo: BYOL and BYOV on digits",
            names=[folder.name for folder in folders.values()],
        )
        console.print(shift_table(page))
        reliability_figure(page, report / "reliability.png")
        results["shift"] = {series["label"]: page["ood"]["values"][series["id"]] for series in page["series"]}
        results["pruning"] = {f"{each['label']}, {c['by']}": c for each in page["pruning"] for c in each["value"]}
        console.print(pruning_table(results["pruning"]))
        write_json(report / "results.json", results)
    console.print(page["verdict"]["question"], style="bold")
    console.print(page["verdict"]["answer"])
    where = f"Open {report}/report.html; see also {report}/results.json and {report}/reliability.png"
    console.print(f"{where}; {monotonic() - started:.0f} s.", markup=False, soft_wrap=True)
    console.print("Next: byov pretrain --help, byov evaluate --help, byov report --help")


def prepare_folder(report: Path, kept: bool) -> None:
    """Create the folder; raise if it already holds runs or, where results are to be `kept`, results."""
    if report.exists() and not report.is_dir():
        raise FileExistsError(f"{report} is a file, but the demo needs a folder.")
    for name in ("byol", "byov", *(("results.json", "reliability.png", "report.html") if kept else ())):
        if (report / name).exists():
            raise FileExistsError(f"{report} already holds a demo ({name}): choose another --out.")
    report.mkdir(parents=True, exist_ok=True)


def narrow_table(title: str, first: str, headings: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    """Return a table with a row of numbers for each name, 80 columns wide."""
    table = columns(title, (first,), headings, SIMPLE)
    table.padding = (0, 0, 0, 1)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def shift_table(page: dict[str, Any]) -> Table:
    """Return a table of ECE in per cent under each shift, and the AUROC of shifted against clean images by entropy."""
    ood = page["ood"]
    shifts = [shift for shift in ood["shifts"] if shift != "clean"]
    levels = ", ".join(map(str, ood["severities"]))
    title = f"Linear probe on shifted digits (mean of severities {levels} of 5): ECE %, and AUROC by entropy"
    short = [shift.removeprefix("gaussian_").replace("_and_", "/").replace(ALL, "mean") for shift in shifts]
    cells = {}
    for series in page["series"]:
        found = ood["values"][series["id"]]
        eces = [f"{100 * found['ece'][shift]['mean']:.1f}" for shift in shifts]
        cells[series["label"]] = [*eces, f"{found['auroc_entropy'][ALL]['mean']:.3f}"]
    return narrow_table(title, "model", (*short, "AUROC"), cells)


def pruning_table(curves: dict[str, dict[str, Any]]) -> Table:
    """Return a table of top-1 in per cent by the share of the encoder's weights that were set to 0."""
    title = "Linear probe on the pruned encoder, nothing retrained: top-1 % by share of zeros"
    shares = [f"{100 * sparsity:g} %" for sparsity in next(iter(curves.values()))["sparsity"]]
    cells = {name: [f"{100 * top1:.1f}" for top1 in curve["top1"]] for name, curve in curves.items()}
    return narrow_table(title, "model, pruned by", shares, cells)


def reliability_figure(page: dict[str, Any], path: Path) -> None:
    """Draw reliability diagrams of clean and shifted digits, in the colours of the page."""
    figure, [panels] = canvas(9, 4.5, 1, 2, sharey=True)
    for axes, (where, diagrams) in zip(panels, page["calibration"].items(), strict=True):
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        for series in page["series"]:
            seen = [point for point in diagrams[series["id"]]["points"] if point["count"] > 5]
            at_mean = series["reading"] == "at_mean" and page["groups"][series["group"]]["posterior"]
            axes.plot(
                [point["confidence"] for point in seen],
                [point["accuracy"] for point in seen],
                "o--" if at_mean else "o-",
                color=COLOURS[series["group"]],
                markersize=3,
                label=series["label"],
            )
        images = next(iter(diagrams.values()))["images"]
        axes.set(xlabel="confidence", xlim=(0, 1), ylim=(0, 1), title=f"{where} digits ({images:,} predictions)")
    panels[0].set_ylabel("accuracy")
    panels[1].legend(frameon=False, loc="upper left")
    with replacing(path) as fresh:
        figure.savefig(fresh, dpi=150)
