"""Seven objectives on digits, with and without a posterior: the readings, table and figure of results/objectives.

python results/objectives.py                  all runs, half a minute of one core each; what is there is not made again
python results/objectives.py --minutes 35     stop in time; the same command continues
python results/objectives.py --show           only the table and the figure
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import mean
from time import monotonic
from typing import TYPE_CHECKING, Any

from digits import ROOT, SEEDS

from byov.cli import main as byov
from byov.report.drawing import COLOURS, MARKERS, canvas, styled
from byov.reproduce.experiment import standard_error
from byov.runs import read_header
from byov.ssl.registry import OBJECTIVES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER, RUNS = ROOT / "results" / "objectives", ROOT / "runs" / "objectives"
FAMILIES = ("none", "gaussian")
SPARSITY = 0.7
SCORES = ("top1", "ece", "nll", "brier")


def call(*words: str) -> str:
    """Run a command of byov in this process, which has torch already; return what it prints."""
    said = io.StringIO()
    sys.argv = ["byov", *words]
    with contextlib.redirect_stdout(said):
        try:
            byov()
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"byov {' '.join(words)} ended with {end.code}: {said.getvalue()}") from None
    return said.getvalue()


def make(name: str, family: str, seed: int) -> None:
    """Pretrain one run and read it, unless its reading is there."""
    out, run = FOLDER / f"{name}_{family}_seed{seed}.json", RUNS / f"{name}_{family}_{seed}"
    if out.exists():
        return
    begun = (run / "checkpoint.safetensors").exists()
    sets = ["--set", f"posterior.family={family}", "--set", f"train.seed={seed}"]
    recipe = str(ROOT / "recipes" / f"digits_{'byov' if name == 'byol' else name}.toml")
    said = call("pretrain", recipe, "--run", str(run), *["--resume"] * begun, *sets)
    knn = re.search(r"kNN at μ ([\d.]+) %", said)
    assert knn is not None, said
    assert read_header(run).finished
    full = run / "evaluation.json"
    full.unlink(missing_ok=True)
    device = ["--samples", "30", "--device", "cpu"]
    call("evaluate", str(run), "--shift", "augmentations", "--severities", "3", *device, "--out", str(full))
    last = json.loads((run / "log.jsonl").read_text().splitlines()[-1])
    evaluation = json.loads(full.read_text())
    evaluation["protocol"]["model"]["name"] = str(
        run.relative_to(ROOT)
    )  # where it lies on this machine is nobody's concern
    found = summary(evaluation) | {"knn": float(knn[1]), "training": last}
    found["pruned"] = pruned(run, ["snr", "magnitude"] if family == "gaussian" else ["magnitude"])
    out.write_text(json.dumps({"recipe": Path(recipe).stem, "family": family, "seed": seed, **found}, indent=1) + "\n")


def pruned(run: Path, orders: list[str]) -> dict[str, list[float]]:
    """Return top-1 and its error, SPARSITY of each layer's weights removed and nothing retrained, by order."""
    out = run / "pruned.json"
    out.unlink(missing_ok=True)
    words = ["--sweep", "--by", ",".join(orders), "--scope", "layer", "--sparsities", f"0,{SPARSITY}"]
    call("prune", str(run), *words, "--device", "cpu", "--out", str(out))
    curves = json.loads(out.read_text())["curves"]
    return {curve["by"]: [curve["top1"][1], curve["error"]["top1"][1]] for curve in curves}


def summary(evaluation: dict[str, Any]) -> dict[str, Any]:
    """Return the scores on clean images and their mean over the shifts, at μ and under draws, and R-AUROC."""
    found: dict[str, Any] = {"protocol": evaluation["protocol"], "representation": evaluation["representation"]}
    for reading, shifted in product(("at_mean", "under_draws"), (False, True)):
        rows = [r[reading] for r in evaluation["rows"] if r.get(reading) and (r["shift"] != "clean") == shifted]
        if rows:
            found[f"{reading}{'_shifted' * shifted}"] = {s: mean(row[s] for row in rows) for s in SCORES}
    return found


READINGS = (("none", "at_mean"), ("gaussian", "at_mean"), ("gaussian", "under_draws"))
COLUMNS: dict[str, Callable[[dict[str, Any], str], float]] = {
    "kNN %": lambda run, how: run["knn"],
    "top-1 %": lambda run, how: 100 * run[how]["top1"],
    "ECE %": lambda run, how: 100 * run[how]["ece"],
    "NLL": lambda run, how: run[how]["nll"],
    "shifted top-1 %": lambda run, how: 100 * run[f"{how}_shifted"]["top1"],
    "shifted ECE %": lambda run, how: 100 * run[f"{how}_shifted"]["ece"],
    "shifted NLL": lambda run, how: run[f"{how}_shifted"]["nll"],
    "R-AUROC": lambda run, how: run["representation"]["r_auroc"][
        "spread_projector" if how == "under_draws" else "negative_norm"
    ][0],
    "70 % pruned: top-1 %": lambda run, how: 100 * run["pruned"]["snr" if how == "under_draws" else "magnitude"][0],
}
DIGITS = {"NLL": 3, "shifted NLL": 2, "R-AUROC": 2}
"""Of a column; of the others 1."""


def collect() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Read what there is with a posterior and without, by objective and family, seed by seed."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name, seed in product(OBJECTIVES, SEEDS):
        paths = {family: FOLDER / f"{name}_{family}_seed{seed}.json" for family in FAMILIES}
        if all(path.exists() for path in paths.values()):
            for family, path in paths.items():
                found.setdefault((name, family), []).append(json.loads(path.read_text()))
    return found


def values(runs: list[dict[str, Any]], column: str, how: str) -> tuple[float, float]:
    """Return the mean over seeds and its standard error, which of one seed is not known."""
    each = [COLUMNS[column](run, how) for run in runs]
    error = standard_error(each)
    return mean(each), float("nan") if error is None else error


def table(found: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """Return the table of results/objectives/README.md."""
    lines = [f"| | seeds | {' | '.join(COLUMNS)} |", f"|---|---:|{'---:|' * len(COLUMNS)}"]
    for name, (family, how) in product(OBJECTIVES, READINGS):
        if runs := found.get((name, family)):
            label = {"none": "point", "gaussian": "μ" if how == "at_mean" else "draws"}[family]
            cells = []
            for column in COLUMNS:
                value, error = values(runs, column, how)
                digits = DIGITS.get(column, 1)
                cells.append(f"{value:.{digits}f}" + (f" ± {error:.{digits}f}" if error == error else ""))
            lines.append(f"| {OBJECTIVES[name].title}, {label} | {len(runs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pairs(found: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """Return the page's sentences: draws beside μ and the point network, SNR beside magnitudes, over all pairs."""
    points, posteriors = ([run for name in OBJECTIVES for run in found.get((name, f), [])] for f in FAMILIES)
    lines = []
    for score, scale in (("ece", 100.0), ("nll", 1.0)):
        for words, others, how in (("μ", posteriors, "at_mean"), ("the point network", points, "at_mean")):
            gains = [
                scale * (b[f"{how}_shifted"][score] - a["under_draws_shifted"][score])
                for a, b in zip(posteriors, others, strict=True)
            ]
            lines.append(f"shifted {score}, {words} minus draws: {_summary(gains)}")
    for words, others in (("magnitude", posteriors), ("the point network's magnitude", points)):
        gains = [
            100 * (a["pruned"]["snr"][0] - b["pruned"]["magnitude"][0]) for a, b in zip(posteriors, others, strict=True)
        ]
        lines.append(f"{SPARSITY:.0%} pruned, SNR minus {words}, points of top-1: {_summary(gains)}")
    return "\n".join(lines)


def _summary(gains: list[float]) -> str:
    above = sum(gain > 0 for gain in gains)
    ends = f"from {min(gains):+.2f} to {max(gains):+.2f}"
    return f"{mean(gains):+.2f} ± {standard_error(gains) or 0.0:.2f}, above 0 in {above} of {len(gains)}, {ends}"


@styled
def figure(found: dict[tuple[str, str], list[dict[str, Any]]]) -> Figure:
    """Draw shifted ECE at a point network, at μ and under draws, and R-AUROC beside that of the norm alone."""
    drawing, [panels] = canvas(8.5, 3.2, 1, 2)
    names = [name for name in OBJECTIVES if all((name, family) in found for family in FAMILIES)]
    for axes, column in zip(panels, ("shifted ECE %", "R-AUROC"), strict=True):
        for i, (family, how) in enumerate(READINGS):
            means, errors = zip(*(values(found[name, family], column, how) for name in names), strict=True)
            rows = [row + 0.18 * (i - 1) for row in range(len(names))]
            known = [error if error == error else 0.0 for error in errors]
            label = ("point network", "posterior, μ", "posterior, draws")[i]
            axes.errorbar(means, rows, xerr=known, fmt=MARKERS[i], color=COLOURS[i], markersize=5, label=label)
        axes.set_yticks(range(len(names)), [OBJECTIVES[name].title for name in names])
        axes.invert_yaxis()
        axes.set_xlabel(column if column != "R-AUROC" else "R-AUROC (draws: spread of the projection; else −‖e‖)")
    panels[1].axvline(0.5, color="0.7", linewidth=1)
    panels[0].legend(loc="best")
    return drawing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--only", nargs="*", default=list(OBJECTIVES), choices=OBJECTIVES, help="these objectives")
    parser.add_argument("--show", action="store_true")
    words = parser.parse_args()
    deadline = monotonic() + 60 * words.minutes
    for seed, name, family in product(SEEDS, words.only, FAMILIES):
        if not words.show and monotonic() < deadline:
            make(name, family, seed)
            print(f"{name} {family} {seed}: {monotonic() - deadline + 60 * words.minutes:.0f} s", flush=True)
    found = collect()
    print(table(found), pairs(found), sep="\n\n")
    figure(found).savefig(FOLDER / "objectives.png", dpi=150)


if __name__ == "__main__":
    main()
