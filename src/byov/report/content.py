"""The numbers of every section of the page, as one JSON tree for its tables and charts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import byov
from byov.evaluation.layers import layer_history
from byov.evaluation.representation import MEASURES as WITHOUT_LABELS
from byov.evaluation.results import plain_json
from byov.evaluation.rows import CLEAN, summarise
from byov.report.diagrams import calibration, entropy, risk
from byov.report.formatting import GLOSSARY
from byov.report.groups import Group, each_reading, row_score
from byov.report.intervals import estimate
from byov.report.sources import ReportedRun, Sources, evenly_spaced
from byov.report.verdict import verdict
from byov.train.config import flatten

METRICS: dict[str, tuple[str, str, bool]] = {
    "ece": ("ECE", "%", False),
    "top1": ("Top-1", "%", True),
    "nll": ("NLL", "nats", False),
    "brier": ("Brier score", "", False),
    "reliability": ("Brier reliability", "", False),
    "auroc_entropy": ("AUROC by entropy", "", True),
    "auroc_mutual_information": ("AUROC by mutual information", "", True),
    "fpr95_entropy": ("FPR at 95 % by entropy", "%", False),
}
"""By score: its name, its unit, and whether higher is better."""
ALL = "all shifts"
CURVES = ("ssl", "cross_entropy", "loss", "kl", "beta", "accuracy", "sigma", "snr", "spread", "lr")


def content(sources: Sources, groups: Sequence[Group]) -> dict[str, Any]:
    """Return the whole tree."""
    shown = [
        {"id": name, "group": groups.index(group), "reading": reading, "label": _series_label(group, reading)}
        for name, group, reading in each_reading(groups)
    ]
    sections = {
        "about": about(groups),
        "verdict": verdict(groups),
        "cost": cost(groups),
        "numbers": numbers(groups),
        "calibration": calibration(groups),
        "ood": ood(groups),
        "risk": risk(groups),
        "entropy": entropy(groups),
        "pruning": pruning(groups, sources.sweeps),
        "layers": layers(groups),
        "convergence": _each(groups, "convergence"),
        "gallery": _each(groups, "gallery"),
        "representation": representation(groups),
        "training": training(groups),
        "reproduced": sources.outcomes,
        "explored": explored(sources.explored),
        "config": config(groups),
        "protocol": protocols(groups),
        "glossary": GLOSSARY,
    }
    models = [
        {
            "label": group.label,
            "posterior": group.posterior,
            "runs": [run.name for run in group.runs],
            "seeds": [run.seed for run in group.runs],
        }
        for group in groups
    ]
    notes = [note for run in sources.runs for note in run.notes]
    return plain_json({"byov": byov.__version__, "groups": models, "series": shown, "notes": notes, **sections})


# Data, date and cost


def about(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the data of the first evaluation, today's date, and byov's commit."""
    data: dict[str, Any] = next((run.protocol["data"] for group in groups for run in group.evaluated), {})
    known = {key: data[key] for key in ("name", "split", "images") if key in data}
    return {"data": known, "date": today().isoformat(), "commit": commit()}


def today() -> date:
    """Return today's date, or that of SOURCE_DATE_EPOCH, for reproducible files."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    return datetime.fromtimestamp(int(epoch), UTC).date() if epoch.isdecimal() else datetime.now().date()


@cache
def commit() -> str | None:
    """Return the commit of byov's clone, with "-dirty" if files have changed; None if it is not a clone."""
    clone = Path(byov.__file__).parents[2]
    if shutil.which("git") is None or not (clone / ".git").exists():
        return None
    words = ["git", "-C", str(clone), "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def cost(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return parameters, seconds of training (the mean over runs) and forward passes per prediction of each model."""
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
    """Return the training time of a run, from its log."""
    log = [] if run.header is None else run.header.records("log.jsonl")
    times = [line["seconds"] for line in log if isinstance(line.get("seconds"), int | float)]
    return times[-1] if times else None


# Scores


def _series_label(group: Group, reading: str) -> str:
    if not group.posterior:
        return group.label
    return f"{group.label}, {'draws' if reading == 'under_draws' else 'μ'}"


def numbers(groups: Sequence[Group]) -> dict[str, Any]:
    """Return means and standard errors by group and reading, and the scores of every run."""
    rows, runs = [], []
    for series, group, reading in each_reading(groups):
        scores = {key: estimate(values) for key, values in _scores(group, reading).items()}
        if scores:
            rows.append({"series": series, "seeds": len(group.evaluated), "scores": scores})
        for run in group.runs:
            own = {key: values[0] for key, values in _scores(Group("", [run]), reading).items()}
            if own:
                runs.append({"run": run.name, "seed": run.seed, "series": series, "scores": own})
    probes = [{"run": run.name, **run.probe} for group in groups for run in group.runs if run.probe]
    return {"rows": rows, "runs": runs, "probes": probes}


def _scores(group: Group, reading: str) -> dict[str, list[float]]:
    """Return each score of each run, under keys such as "ece/clean"."""
    conditions = [(name, where) for name in METRICS for where in ("clean", "shifted")]
    found = {f"{name}/{where}": group.values(name, reading, where == "clean") for name, where in conditions}
    return {key: values for key, values in found.items() if values}


def ood(groups: Sequence[Group]) -> dict[str, Any]:
    """Return each score by shift and severity (and their "mean"), averaged over the runs of a group."""
    cells: dict[str, dict[str, dict[str, dict[str, list[float]]]]] = {}
    shifts: dict[str, None] = {}
    severities: set[int] = set()
    for series, group, reading in each_reading(groups):
        for row in (row for run in group.evaluated for row in [*run.rows, *summarise(run.rows)]):
            shift = ALL if row.key == ("mean", 0) else row.shift
            severity = "mean" if row.severity == 0 else str(row.severity)
            shifts.setdefault(shift)
            severities |= {row.severity} - {0}
            for name in METRICS:
                value = row_score(row, reading, name)
                if value is not None:
                    place = cells.setdefault(series, {}).setdefault(name, {}).setdefault(shift, {})
                    place.setdefault(severity, []).append(value)
    if not cells:
        return {}
    order = sorted(shifts, key=lambda name: (name != CLEAN, name == ALL))  # stable
    metrics = {name: {"name": words, "unit": unit, "more": more} for name, (words, unit, more) in METRICS.items()}
    values = _means(cells)
    for score in (found for of_series in values.values() for found in of_series.values() if ALL in found):
        for severity in map(str, severities):
            each = [
                found[severity] for shift, found in score.items() if shift not in (CLEAN, ALL) and severity in found
            ]
            score[ALL] |= {severity: sum(each) / len(each)} if each else {}
    return {"shifts": order, "severities": sorted(severities), "metrics": metrics, "values": values}


def _means(tree: Any) -> Any:
    """Replace each list in a tree by its mean."""
    return {key: _means(value) for key, value in tree.items()} if isinstance(tree, dict) else sum(tree) / len(tree)


def _each(groups: Sequence[Group], part: str) -> list[dict[str, Any]]:
    """Return a part of the first run in each group that has it."""
    having = [(i, [run for run in group.runs if part in run.parts]) for i, group in enumerate(groups)]
    return [{"group": i, "run": runs[0].name, "value": runs[0].parts[part]} for i, runs in having if runs]


def representation(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return R@1 and R-AUROC by measure of the first run in each group that has them, measured or in a results file."""
    found = []
    for i, group in enumerate(groups):
        for run in group.runs:
            value = run.parts.get("representation") or (run.evaluation or {}).get("representation")
            if value:
                by_name = {WITHOUT_LABELS.get(name, name): pair for name, pair in value["r_auroc"].items()}
                found.append({"group": i, "run": run.name, "value": {**value, "r_auroc": by_name}})
                break
    return found


def pruning(groups: Sequence[Group], sweeps: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the curves of the first run in each group, and those in files of `byov prune`, by model name."""
    found = [{"label": groups[each["group"]].label, **each} for each in _each(groups, "pruning")]
    names = {PurePath(run.name).name: i for i, group in enumerate(groups) for run in group.runs}
    for sweep in sweeps:
        for curve in sweep["curves"]:
            known = names.get(str(curve["model"]))
            seed = f", seed {curve['seed']}" if curve.get("seed") is not None else ""
            place = len(groups) + len(found) if known is None else known
            name = f"{curve['model']}{seed} ({PurePath(sweep['file']).name})"
            found.append({"label": name, "group": place, "run": str(curve["model"]), "value": [curve]})
    return found


def layers(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return σ and SNR by tensor, and their history if training recorded it."""
    found = _each(groups, "layers")
    for entry in found:
        entry["log"] = history(next(run for run in groups[entry["group"]].runs if run.name == entry["run"]))
    return found


def history(run: ReportedRun, most: int = 8) -> dict[str, Any]:
    """Return mean σ and mean |μ|/σ during training, for at most `most` layers evenly spaced in depth."""
    try:
        found = layer_history(run.header.folder) if run.header is not None else None
    except ValueError:  # no record
        found = None
    if found is None or len(found.epochs) < 2:
        return {}
    at, quantities = evenly_spaced(range(len(found.epochs)), 60), {"sigma": found.sigma_mean, "snr": found.snr_mean}
    random = [i for i, snr in enumerate(found.snr_mean) if snr[-1] is not None]
    layers = [
        {"name": found.layers[i], **{name: [values[i][k] for k in at] for name, values in quantities.items()}}
        for i in evenly_spaced(random, most)
    ]
    return {"epochs": [found.epochs[k] for k in at], "layers": layers}


def training(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the thinned log of every run: (epoch, value) pairs by name."""
    found = []
    for i, run in ((i, run) for i, group in enumerate(groups) for run in group.runs):
        log = [] if run.header is None else run.header.records("log.jsonl")
        lines, curves = evenly_spaced([line for line in log if isinstance(line.get("epoch"), int | float)], 120), {}
        for name in CURVES:
            each = [[line["epoch"], line[name]] for line in lines if isinstance(line.get(name), int | float)]
            if len(each) > 1 and any(y for _, y in each):
                curves[name] = each
        if curves:
            found.append({"group": i, "run": run.name, "seed": run.seed, "curves": curves})
    return found


def explored(files: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the figure and the numbers of each file of `byov explore`, with curves for convergence."""
    found = []
    for file in files:
        result = file["result"] if isinstance(file["result"], dict) else {}
        single = {key: value for key, value in flatten(result).items() if isinstance(value, int | float | str)}
        curves = result if file["what"] == "convergence" else {}
        about = {name: file[name] for name in ("what", "file", "figure")}
        found.append({**about, "numbers": single, "curves": curves})
    return found


def config(groups: Sequence[Group]) -> dict[str, Any]:
    """Return every setting by group, differing ones first, and the size of each network."""
    flats = [flatten(group.runs[0].config) for group in groups]
    rows: list[dict[str, Any]] = []
    for key in dict.fromkeys(key for settings in flats for key in settings):
        values = [settings.get(key) for settings in flats]
        if key == "train.seed":
            values = [[run.seed for run in group.runs] for group in groups]
        rows.append({"key": key, "values": values, "differ": any(value != values[0] for value in values)})
    extra: dict[str, Callable[[ReportedRun], Any]] = {
        "weights": lambda run: run.parts.get("identity", {}).get("weights"),
        "of them random": lambda run: run.parts.get("identity", {}).get("random"),
        "N of the KL": lambda run: run.about.get("kl_scale"),
        "training images": lambda run: run.about.get("data", {}).get("images"),
        "data digest": lambda run: run.about.get("data", {}).get("digest"),
    }
    about = [{"key": key, "values": [get(group.runs[0]) for group in groups]} for key, get in extra.items()]
    about = [row for row in about if any(value is not None for value in row["values"])]
    return {"rows": sorted(rows, key=lambda row: not row["differ"]), "about": about} if rows else {}


def protocols(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the protocol shared by all evaluations, and what is specific to each run."""
    evaluated = [run for group in groups for run in group.evaluated]
    flats = {run.name: flatten(run.protocol) for run in evaluated}
    first = next(iter(flats.values()), {})
    agreed = (k for k, value in first.items() if value is not None and all(e.get(k) == value for e in flats.values()))
    shared = {key: first[key] for key in agreed}
    own = {name: {key: v for key, v in each.items() if key not in shared} for name, each in flats.items()}
    return {"shared": shared, "own": own} if flats else {}
