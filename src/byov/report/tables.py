"""The tables that the commands print, made from numbers alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text
from torch import nn

from byov.evaluation.predictions import Predictions
from byov.evaluation.pruning import Prunable
from byov.evaluation.representation import MEASURES
from byov.evaluation.results import Results, read
from byov.evaluation.rows import CLEAN, summarise
from byov.evaluation.rows import Row as ScoreRow
from byov.evaluation.sweep import sweep_groups
from byov.overhead import Row
from byov.posterior.module import BayesianModule
from byov.pruning import find_blocks, layers
from byov.runs import Run
from byov.runs.run import NO_NETWORK, mean_is_no_network
from byov.ssl.probe import ProbeResult

SCORES = {
    "top-1": ("top1", (100, 1)),
    "ECE": ("ece", (100, 2)),
    "NLL": ("nll", (1, 3)),
    "Brier": ("brier", (1, 3)),
}
"""By heading: the score, its factor and its decimals."""
PROBES = {
    "linear": "linear, μ",
    "linear_draws": "linear, draws",
    "knn": "kNN, μ",
    "knn_draws": "kNN, draws",
    "byol": "BYOL, μ",
    "byol_tempered": "… tempered",
    "byol_draws": "BYOL, draws",
    "byol_draws_tempered": "… tempered",
    "byol_teacher": "BYOL, teacher",
    "byol_teacher_tempered": "… tempered",
}
"""The readings of `byov probe`: L-BFGS, kNN, and BYOL's linear evaluation."""


def columns(title: str, left: Sequence[str], right: Sequence[str], style: box.Box | None = box.SIMPLE_HEAD) -> Table:
    """Return an empty table with text columns on the left and number columns on the right."""
    made = Table(title=Text(title), box=style, title_justify="left")
    for heading in left:
        made.add_column(Text(heading), overflow="fold")
    for heading in right:
        made.add_column(Text(heading), justify="right", no_wrap=True)
    return made


def probes(results: Mapping[str, ProbeResult]) -> Table:
    """Return a table with one row per model and probe, with shares in per cent."""
    scores = ("top-1 %", "ECE %", "NLL", "Brier", "reliability")
    k = ", ".join(map(str, sorted({result.settings.k for result in results.values()})))
    title = f"Probes on the frozen encoder, at the mean μ and under draws (kNN: k = {k})"
    made = columns(title, ("model", "probe"), scores, box.SIMPLE)
    for model, result in results.items():
        found = [(label, result.scores[name]) for name, label in PROBES.items() if name in result.scores]
        for i, (label, s) in enumerate(found):
            percent = [f"{100 * s.top1:.2f}", f"{100 * s.ece:.2f}"]
            others = [f"{value:.4f}" for value in (s.nll, s.brier, s.reliability)]
            made.add_row(Text(model if i == 0 else ""), label, *percent, *others)
        made.add_section()
    return made


# byov evaluate


def evaluation(results: Results, run: Run, baseline: Path | None) -> Iterator[RenderableType]:
    """Yield the table of an evaluation and the lines that explain it."""
    protocol = results.protocol
    about = f"{protocol['data']['name']} {protocol['data']['split']}, {protocol['data']['images']:,} images"
    draws = f", {protocol['samples']} draws" if protocol["samples"] else ""
    yield scores(results.rows, f"{run.name} on {about}{draws}")
    yield Text(_caption(protocol))  # wrapped, unlike lines with a path
    if floor := _floor(results.rows[0], protocol["data"]["images"]):
        yield Text(floor)
    if results.representation:
        yield Text(_without_labels(results.representation))
    if mean_is_no_network(run.weights):
        yield Text(NO_NETWORK)
    for name, reason in protocol["left_out"].items():
        yield f"{name} is left out: {reason}"
    errors = read(results.path)["summary"].get("corruption_errors")
    if errors and baseline is not None:
        yield from error_lines(errors, str(baseline))


def scores(rows: Sequence[ScoreRow], title: str) -> Table:
    """Return a table of clean images, each shift (averaged over severities) and the mean of the shifts."""
    clean, shifts = [row for row in rows if row.shift == CLEAN], summarise(rows)
    shown = list(_columns(any(row.under_draws is not None for row in rows), bool(shifts)))
    made = columns(title, ("\nimages",), [f"{heading}\n{line}" for heading, line, *_ in shown])
    made.padding = (0, 1, 0, 0)
    made.columns[0].no_wrap, made.columns[0].overflow = True, "ellipsis"
    for group in (clean, shifts[:-1], shifts[-1:]):
        for row in group:
            name = "mean of shifts" if row.shift == "mean" else row.shift.replace("_", " ")
            cells = (_cell((getattr(row, reading) or {}).get(key), *how) for *_, reading, key, how in shown)
            made.add_row(name, *cells)
        made.add_section()
    return made


def error_lines(errors: dict[str, dict[str, Any]], baseline: str) -> Iterator[str]:
    """Yield a line of corruption errors for each reading."""
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
    """Yield the two heading lines, the reading, the score and the (factor, decimals) of each column."""
    readings = {"at_mean": "μ", **({"under_draws": "draws"} if drawn else {})}
    for heading, (key, how) in SCORES.items():
        for reading, line in readings.items():
            yield heading if reading == "at_mean" else "", line, reading, key, how
    if shifted:
        yield "AUROC", "H, μ", "at_mean", "auroc_entropy", (1, 3)
    if shifted and drawn:
        yield "", "H", "under_draws", "auroc_entropy", (1, 3)
        yield "", "MI", "under_draws", "auroc_mutual_information", (1, 3)


def _cell(value: float | None, factor: float, digits: int) -> str:
    return "–" if value is None else f"{factor * value:.{digits}f}"


def _caption(protocol: dict[str, Any]) -> str:
    parts = [f"top-1 and ECE ({protocol['bins']} equal-width bins) in %."]
    if protocol["shifts"]:
        levels = ", ".join(map(str, protocol["severities"]))
        mean = f"the mean over severities {levels}" if "," in levels else f"severity {levels}"
        by = "entropy (H) and mutual information (MI)" if protocol["samples"] else "entropy (H)"
        parts += [f"Shifts: {mean}.", f"AUROC: shifted against clean images by {by}."]
        parts += [protocol["conventions"]["strengths"]]
    return " ".join(parts).strip()


def _floor(clean: ScoreRow, images: int) -> str:
    """Give the ECE that a calibrated model would have on the clean images; empty for rows of older files."""
    floors = {"at μ": clean.at_mean.get("ece_floor"), "under draws": (clean.under_draws or {}).get("ece_floor")}
    each = ", ".join(f"{100 * floor:.2f} % {name}" for name, floor in floors.items() if floor is not None)
    if not each:
        return ""
    return f"A perfectly calibrated model with these confidences has, on {images:,} images, an ECE of {each}."


def _without_labels(found: dict[str, Any]) -> str:
    """Give R@1, and R-AUROC by measure of uncertainty."""
    r_at_1 = f"Without labels: R@1 {100 * found['r_at_1'][0]:.2f} %"
    each = [f"{MEASURES[name]} {values[0]:.3f}" for name, values in found["r_auroc"].items() if values is not None]
    return f"{r_at_1}; R-AUROC: {', '.join(each)}." if each else f"{r_at_1}."


def regression(found: dict[str, Any], model: str) -> Iterator[RenderableType]:
    """Yield a table of a regression's scores with a row for each reading, and its note."""
    protocol = found["protocol"]
    title = f"{model} on {protocol['data']['name']}, {protocol['data']['rows']:,} test rows"
    made = columns(title, ("",), ("RMSE", "log density", "in 95 % intervals"), None)
    for key, label in {"at_mean": "at μ", "under_draws": f"under {protocol['samples']} draws"}.items():
        if each := found.get(key):
            cells = f"{each['rmse']:.4g}", f"{each['log_density']:.3f}", f"{100 * each['coverage95']:.1f} %"
            made.add_row(label, *cells)
    yield made
    if found["note"]:
        yield found["note"]


# byov predict


def predictions(found: Predictions, title: str, posterior: bool, out: Path) -> Iterator[RenderableType]:
    """Yield a table of the most uncertain inputs, and a line of means over all inputs."""
    values = found.columns
    truth = () if found.labels is None else ("label",)
    numbers = ("confidence", "std", "entropy", "MI", "draws")
    made = columns(f"{title}: the most uncertain inputs", ("input", *truth, "predicted"), numbers)
    for i in found.most_uncertain():
        label = [] if found.labels is None else [Text(found.class_names[found.labels[i]])]
        cells = [f"{values[name][i]:.3f}" for name in ("confidence", "std", "entropy", "mutual_information")]
        predicted = Text(found.class_names[values["predicted"][i]])
        made.add_row(Text(found.inputs[i]), *label, predicted, *cells, str(values["draws"][i]))
    yield made
    draws = f"{values['draws'].mean():.4g} draws each" if posterior else "no posterior"
    parts = [f"{len(found):,} input{'s' * (len(found) != 1)}, {draws}"]
    parts += [] if found.accuracy is None else [f"top-1 {100 * found.accuracy:.2f} %"]
    parts += [f"mean confidence {values['confidence'].mean():.3f}", f"entropy {values['entropy'].mean():.3f}"]
    parts += [f"mutual information {values['mutual_information'].mean():.4f}"] if posterior else []
    parts += [f"{len(found.unreadable)} could not be read"] if found.unreadable else []
    yield f"{', '.join(parts)}: {out}"


# byov prune


def sweep(content: dict[str, Any]) -> Iterator[Table]:
    """Yield a table of top-1 over sparsity for each scope and probe, with a column per model and ranking.

    The last column is the difference between SNR and magnitude; its error accounts for the shared images.
    """
    test = content["protocol"]["test"]
    for (scope, probe), curves in sweep_groups(content["curves"]).items():
        title = f"top-1 in %, {test['name']} {test['split']}; {scope}; {probe}"
        ahead = [
            each for each in content.get("differences", ())
            if (each["scope"], each.get("probe")) == (curves[0]["scope"], curves[0].get("probe"))
            and (each["of"]["by"], each["minus"]) == ("snr", {"model": each["of"]["model"], "by": "magnitude"})
        ]  # fmt: skip
        headings = [f"{curve['model']}\n{curve['by']}" for curve in curves] + ["snr −\nmagnitude" for _ in ahead]
        made = columns(title, (), ("zeros", *headings))
        for i, sparsity in enumerate(curves[0]["sparsity"]):
            points = [f"{100 * each['top1'][i]:.2f} ±{100 * each['error']['top1'][i]:.2f}" for each in curves + ahead]
            made.add_row(f"{100 * sparsity:g} %", *points)
        yield made


def smaller(part: Prunable, net: nn.Module, title: str, out: Path) -> Iterator[RenderableType]:
    """Yield a table of the groups kept in each block, and a line of parameter counts."""
    model = part.run.network
    whole = part.kept(model.point() if isinstance(model, BayesianModule) else model)
    left = {block.name: block.units for block in find_blocks(net)}
    made = columns(title, ("block",), ("kind", "groups", "kept"))
    for block in find_blocks(whole):
        made.add_row(Text(block.name), block.kind, f"{block.units:,}", f"{left[block.name]:,}")
    yield made
    before, after = (sum(p.numel() for p in each.parameters()) for each in (whole, net))
    yield f"{before:,} parameters, {after:,} left ({100 * after / before:.1f} %): {out}"


def sparse(net: nn.Module, title: str, out: Path) -> Iterator[RenderableType]:
    """Yield a table of the zeros in each layer, and a line comparing the file with the dense network."""
    rows = layers(net)
    made = columns(title, ("layer",), ("weights", "kept", "zeros", "sparsity"))
    weights, zeros = sum(row.weights for row in rows), sum(row.zeros for row in rows)
    for name, of, gone in [*rows, ("all of these", weights, zeros)]:
        if name == "all of these":
            made.add_section()
        made.add_row(Text(name), f"{of:,}", f"{of - gone:,}", f"{gone:,}", f"{100 * gone / max(of, 1):.1f} %")
    yield made
    masks = {f"{row.name}_mask" for row in rows}
    dense = sum(p.nbytes for p in net.parameters())
    dense += sum(buffer.nbytes for name, buffer in net.named_buffers() if name not in masks)
    size = out.stat().st_size
    yield f"dense {dense:,} bytes, sparse {size:,} ({100 * size / dense:.1f} %): {out}"


# byov overhead


def overhead(model: str, rows: Sequence[Row]) -> Table:
    """Return a table of parameters, overhead and effective ensemble size of every family on a network."""
    made = columns(model, ("family", "on"), ("parameters", "overhead", "effective size"), box.HEAVY_HEAD)
    made.caption = "effective size: the number of different networks that can be drawn"
    for row in rows:
        made.add_row(row.family, row.on, f"{row.parameters:,}", _percent(row.percent), row.ensemble_size)
    return made


def _percent(value: float) -> str:
    """Format three digits as in the paper: 0.328 %, 1.10 %, 17.9 %, 100 %."""
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} %" if value else "0 %"


# byov reproduce


def catalogue(entries: Sequence[tuple[str, str, str | None]]) -> Table:
    """Return a table of (name, title, reason why it is not reproduced or None)."""
    made = columns("The papers' tables and figures", ("name", "what it shows"), ())
    made.columns[0].no_wrap = True
    paper = ""
    for name, title, reason in entries:
        if paper not in ("", name.partition("/")[0]):
            made.add_section()
        paper = name.partition("/")[0]
        words = title if reason is None else f"{title} – not reproduced: {reason}"
        made.add_row(Text(name, "bold" if reason is None else "dim"), Text(words, "" if reason is None else "dim"))
    return made


def reproduced(content: dict[str, Any], folder: Path, again: bool) -> Iterator[RenderableType]:
    """Yield a result as a table of paper | ours | verdict, its note and its folder."""
    protocol = content["protocol"]
    where = f"{protocol['scale']}, seed {protocol['seed']}, {protocol['device']}"
    about = f"{content['name']}: {content['title']} ({where})"
    if content["comparisons"]:
        made = columns(about, ("quantity",), ("paper", "ours"))
        made.add_column("verdict")
        for row in content["comparisons"]:
            error = "" if row["error"] is None else f" ± {_number(row['error'])}"
            ours = f"{_number(row['ours'])}{error}"
            made.add_row(Text(row["quantity"]), _number(row["paper"]), ours, Text(row["verdict"]))
        yield made
    else:
        yield about
    if content["note"]:
        yield content["note"]
    yield f"{'finished before (--force runs it again)' if again else 'written'}: {folder}"


def _number(value: float | None) -> str:
    """Format large integers in full, other numbers with four significant digits."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) >= 1000 else f"{value:.4g}"
