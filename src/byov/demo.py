"""The demo: BYOL and BYOV on scikit-learn's digits, from raw images to a calibrated probe."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import Tensor

from byov.data import ImageSet, load
from byov.data.augmentations import augment
from byov.evaluation.probing import ProbedRun, probe_run
from byov.files import replacing, write_json
from byov.metrics.functional import calibration_error, ood_auroc, reliability_diagram
from byov.prediction import Prediction
from byov.prediction.result import entropy
from byov.report.collect import FEW, Request
from byov.report.drawing import canvas
from byov.report.page import report as make_report
from byov.report.tables import columns, probes
from byov.reproduce.recipes import load as load_recipe
from byov.runs import Reading
from byov.ssl.pretrain import Pretrain, start

DRAWS, FIT_DRAWS = 30, 8
"""To read under, and to fit a probe under."""
SHIFTS, SEVERITY = FEW, 4


def recipe(posterior: bool, epochs: int) -> Pretrain:
    """Load recipes/digits_byov.toml, or its twin without a posterior, for so many epochs."""
    name = "digits_byov" if posterior else "digits_byol"
    return load_recipe(Pretrain, name, f"train.epochs={epochs}", f"train.warmup={min(3, epochs)}")


def demo(out: Path | None = None, epochs: int = 40) -> None:
    """Pretrain both, probe both, print the tables, write the page; with a folder, keep everything there."""
    console, started = Console(), monotonic()
    report = Path("runs/demo") if out is None else out
    recipes = {"BYOL": recipe(False, epochs), "BYOV": recipe(True, epochs)}
    claim(report, kept=out is not None)
    with tempfile.TemporaryDirectory() as scratch:
        folder = out if out is not None else Path(scratch)
        runs: dict[str, ProbedRun] = {}
        for name, settings in recipes.items():
            console.print(f"Pretraining {name} on 1,347 digits, without their labels …")
            start(settings, folder / name.lower())
            runs[name] = probe_run(folder / name.lower(), samples=DRAWS, fit_samples=FIT_DRAWS, k=20, device="cpu")
        console.print(probes({name: run.result for name, run in runs.items()}))
        shifted = under_shift(runs)
        console.print(shift_table(shifted))
        results = {name: {"scores": run.result.numbers(), "protocol": run.protocol} for name, run in runs.items()}
        results["shift"] = {name: {"/".join(k): v for k, v in row.items()} for name, row in shifted.items()}
        reliability_figure(runs, report / "reliability.png")
        page = make_report(
            [folder / name.lower() for name in runs],
            report / "report.html",
            Request(Reading(DRAWS, fit_samples=FIT_DRAWS)),
            title="byov demo: BYOL and BYOV on digits",
            names=[name.lower() for name in runs],
        )
        results["pruning"] = {f"{each['label']}, {c['by']}": c for each in page["pruning"] for c in each["value"]}
        console.print(pruning_table(results["pruning"]))
        write_json(report / "results.json", results)
    console.print(page["verdict"]["question"], style="bold")
    console.print(page["verdict"]["answer"])
    where = f"Open {report}/report.html; {report}/results.json and {report}/reliability.png hold this too"
    console.print(f"{where}; {monotonic() - started:.0f} s.", markup=False, soft_wrap=True)
    console.print("Next: byov pretrain --help, byov evaluate --help, byov report --help")


def claim(report: Path, kept: bool) -> None:
    """Refuse a folder that holds runs, which the results would no longer be of, or any results that were `kept`."""
    if report.exists() and not report.is_dir():
        raise FileExistsError(f"{report} is a file, and the demo needs a folder.")
    for name in ("byol", "byov", *(("results.json", "reliability.png", "report.html") if kept else ())):
        if (report / name).exists():
            raise FileExistsError(f"{report} holds a demo already ({name}): choose another --out.")
    report.mkdir(parents=True, exist_ok=True)


def test_digits() -> tuple[Tensor, Tensor]:
    """Return the test digits in [0, 1], and their labels."""
    test = load("digits", "test")
    assert isinstance(test, ImageSet)
    assert test.labels is not None
    return test.images.float() / 255, test.labels


def readings(run: ProbedRun, images: Tensor) -> dict[str, Prediction]:
    """Return the linear probe's predictions at μ, and with a posterior under draws."""
    found = {"μ": run.result.probe.predict(images)}
    if run.result.probe.under_draws:
        found["draws"] = run.result.probe.predict(images, draws=DRAWS)
    return found


def under_shift(runs: dict[str, ProbedRun]) -> dict[str, dict[tuple[str, str], float]]:
    """Compute the ECE on shifted test digits, and how well the entropy tells them from clean ones."""
    clean, labels = test_digits()
    table: dict[str, dict[tuple[str, str], float]] = {}
    for name, run in runs.items():
        known = readings(run, clean)
        for reading in known:
            table[f"{name}, {reading}"] = {}
        for shift in SHIFTS:
            moved = augment(clean, shift, SEVERITY, torch.Generator().manual_seed(0))
            for reading, prediction in readings(run, moved).items():
                row = table[f"{name}, {reading}"]
                row[shift, "ece"] = float(calibration_error(prediction.mean, labels))
                row[shift, "auroc"] = float(ood_auroc(entropy(known[reading].mean), entropy(prediction.mean)))
    return table


def narrow(title: str, first: str, headings: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Table:
    """Show a row of numbers for each name, in 80 columns."""
    table = columns(title, (first,), headings, SIMPLE)
    table.padding = (0, 0, 0, 1)
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def shift_table(rows: dict[str, dict[tuple[str, str], float]]) -> Table:
    """Show the ECE in per cent under each shift, and the mean AUROC of shifted against clean by entropy."""
    title = f"Linear probe on shifted digits (severity {SEVERITY} of 5): ECE %, and AUROC by entropy"
    short = [shift.removeprefix("gaussian_").replace("_and_", "/") for shift in SHIFTS]
    cells = {}
    for name, row in rows.items():
        eces = [100 * row[shift, "ece"] for shift in SHIFTS]
        auroc = sum(row[shift, "auroc"] for shift in SHIFTS) / len(SHIFTS)
        cells[name] = [f"{ece:.1f}" for ece in (*eces, sum(eces) / len(eces))] + [f"{auroc:.3f}"]
    return narrow(title, "model", (*short, "mean", "AUROC"), cells)


def pruning_table(curves: dict[str, dict[str, Any]]) -> Table:
    """Show top-1 in per cent against the share of the encoder's weights that were set to 0."""
    title = "Linear probe on the pruned encoder, nothing retrained: top-1 % by share of zeros"
    shares = [f"{100 * sparsity:g} %" for sparsity in next(iter(curves.values()))["sparsity"]]
    cells = {name: [f"{100 * top1:.1f}" for top1 in curve["top1"]] for name, curve in curves.items()}
    return narrow(title, "model, pruned by", shares, cells)


def reliability_figure(runs: dict[str, ProbedRun], path: Path) -> None:
    """Draw accuracy against confidence, one line per reading: on the clean test digits, and on all shifted ones."""
    clean, labels = test_digits()
    moved = torch.cat([augment(clean, shift, SEVERITY, torch.Generator().manual_seed(0)) for shift in SHIFTS])
    figure, [panels] = canvas(9, 4.5, 1, 2, sharey=True)
    sets = {"clean": (clean, labels), "shifted": (moved, labels.repeat(len(SHIFTS)))}
    for axes, (title, (images, truth)) in zip(panels, sets.items(), strict=True):
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        for name, run in runs.items():
            for reading, prediction in readings(run, images).items():
                bins = reliability_diagram(prediction.mean, truth, bins=10)
                seen = bins.count > 5
                axes.plot(bins.confidence[seen], bins.accuracy[seen], "o-", markersize=3, label=f"{name}, {reading}")
        axes.set(xlabel="confidence", xlim=(0, 1), ylim=(0, 1), title=f"{title} digits ({len(images):,})")
    panels[0].set_ylabel("accuracy")
    panels[1].legend(frameon=False, loc="upper left")
    with replacing(path) as fresh:
        figure.savefig(fresh, dpi=150)
