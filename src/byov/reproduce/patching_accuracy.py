"""Tables 4, 6 and 9 to 11, and Figures 4 to 7, of the patching paper: accuracy and calibration, by method and by S."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import isnan
from statistics import mean
from typing import TYPE_CHECKING, Any

from byov.evaluation.scores import PAPER_MIN_COUNT
from byov.report.drawing import canvas, styled
from byov.reproduce.experiment import Comparison, Context, Outcome, experiment, standard_error
from byov.reproduce.patching_runs import METHODS, Readings, in_rows, label, matching, readings, row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = tuple[float, float, float, float]

SHOWN: tuple[str, ...] = ("vanilla", "dropout", "emp", "ecmp")
COLUMNS = {"top5": "top-5 %", "top1": "top-1 %", "ece": "ECE %", "mce": "MCE %"}
TABLE4: dict[str, Row] = {  # top-5, top-1, ECE and MCE in per cent
    "emp": (87.2, 67.0, 3.91, 6.83),
    "emp_bn": (86.8, 66.6, 5.74, 11.0),
    "ecmp": (87.2, 67.1, 1.65, 3.15),
    "ecmp_bn": (86.8, 66.4, 4.62, 8.07),
    "dropout": (86.7, 65.9, 7.61, 14.0),
    "vanilla": (86.7, 66.1, 8.09, 14.2),
}
TABLE6: dict[str, Row] = {
    "emp": (92.0, 74.0, 13.6, 28.9),
    "ecmp": (91.9, 73.5, 8.73, 18.1),
    "dropout": (91.4, 72.0, 21.1, 52.3),
    "vanilla": (90.9, 72.6, 21.6, 54.6),
}
OVERHEAD4 = {"emp": 17.9, "ecmp": 17.9, "emp_bn": 0.328, "ecmp_bn": 0.328, "dropout": 0.0, "vanilla": 0.0}
OVERHEAD6 = {"emp": 1.10, "ecmp": 1.10, "dropout": 0.0, "vanilla": 0.0}
RESNET, PYRAMIDNET = "ResNet-18 on ImageNet", "PyramidNet-110 (α = 270) on CIFAR-100"
BY_DRAWS: dict[str, dict[str, dict[int, Row]]] = {  # Tables 9 to 11; their S = 200 are Tables 4 and 6
    "ResNet": {
        "emp": {1: (86.4, 65.6, 7.03, 13.8), 20: (87.1, 66.9, 4.08, 7.00), 100: (87.2, 67.0, 3.88, 7.71)},
        "ecmp": {1: (85.6, 64.1, 7.52, 14.5), 20: (87.1, 66.9, 1.70, 4.18), 100: (87.2, 67.1, 1.50, 3.05)},
        "dropout": {1: (86.3, 65.3, 8.99, 16.6), 20: (86.6, 65.9, 7.64, 14.1), 100: (86.7, 65.9, 7.64, 14.2)},
    },
    "PyramidNet": {
        "emp": {1: (90.9, 72.2, 21.2, 50.1), 20: (91.6, 73.2, 14.2, 30.0), 100: (91.7, 74.2, 13.6, 30.3)},
        "ecmp": {1: (89.3, 69.3, 23.9, 53.0), 20: (91.6, 72.9, 9.35, 21.4), 100: (91.8, 72.7, 8.81, 18.2)},
        "dropout": {1: (91.0, 72.0, 21.8, 54.2), 20: (91.4, 72.3, 21.0, 50.7), 100: (91.1, 72.2, 21.0, 51.9)},
    },
}
for _network, _last in (("ResNet", TABLE4), ("PyramidNet", TABLE6)):
    for _method, _rows in BY_DRAWS[_network].items():
        _rows[200] = _last[_method]


def about(found: Readings, paper: str) -> str:
    """Describe our network and data, and what they replace."""
    one = next(iter(found.values()))[0]
    easy = (
        " On digits no method is overconfident, so there is little to calibrate: this only shows how the table is made."
    )
    return (
        f"Ours: {one['network']} on {one['data']}, instead of the paper's {paper}, so absolute numbers differ, and only"
        " the order of the methods can agree. Last epoch, 20 bins, bins of at most 5 samples removed."
        " Our recipes train for 60 epochs, the paper for 100 (ImageNet) and 400 (CIFAR)."
        + (easy if one["data"] == "digits" else "")
    )


def under_all_draws(reading: dict[str, Any]) -> dict[str, float]:
    """Return the scores under all draws, or the only ones of a plain network."""
    return reading["by_draws"][max(reading["by_draws"], key=int)]


def score_of(found: Readings, method: str, key: str) -> float:
    """Return a score of a method under all draws, averaged over seeds."""
    return mean(under_all_draws(reading)[key] for reading in found[method])


def _percent(quantity: str, shares: Sequence[float], paper: float | None = None) -> Comparison:
    """Compare the mean of shares, one per seed, with the paper's value in per cent."""
    values = [100 * share for share in shares]
    return Comparison(quantity, mean(values), paper, standard_error(values))


def _scored(prefix: str, scores: Sequence[dict[str, float]], paper: Row | None) -> list[Comparison]:
    """Compare every column of a row of a table; `scores` has one entry per seed."""
    theirs = paper or (None,) * len(COLUMNS)
    columns = zip(COLUMNS.items(), theirs, strict=True)
    return [_percent(f"{prefix}: {heading}", [own[key] for own in scores], p) for (key, heading), p in columns]


def holds(ours: bool, theirs: bool) -> str:
    """Say whether a claim of the paper also holds for ours."""
    return "holds" if ours == theirs else "does not hold"


# Tables 4 and 6


def table(
    found: Readings, paper: dict[str, Row], overhead: dict[str, float], skip: tuple[str, ...] = ()
) -> list[Comparison]:
    """Compare every method and column, followed by the paper's claims."""
    rows: list[Comparison] = []
    base = mean(reading["parameters"] for reading in found["vanilla"])
    for method in (name for name in found if row(found, name) not in skip):
        name = label(found, method)
        more, theirs = 100 * (found[method][0]["parameters"] / base - 1), overhead.get(row(found, method))
        rows.append(Comparison(f"{name}: overhead %", more, theirs))
        rows += _scored(name, [under_all_draws(reading) for reading in found[method]], paper.get(row(found, method)))
        stacked = [reading["stacked"] for reading in found[method] if reading.get("stacked")]
        for key in ("top1", "ece") if stacked else ():
            rows.append(_percent(f"{name}, stacked: {COLUMNS[key]}", [each[key] for each in stacked]))
    return rows + claims(found, paper)


def claims(found: Readings, paper: dict[str, Row]) -> list[Comparison]:
    """Compare with the claims that a method is better calibrated and more accurate than vanilla, and than dropout."""
    rows = []
    for method in matching(found, ("ecmp", "emp", "dropout")):
        name, theirs = label(found, method), paper[row(found, method)]
        ratio, its = score_of(found, method, "ece") / score_of(found, "vanilla", "ece"), theirs[2] / paper["vanilla"][2]
        rows.append(Comparison(f"{name}: ECE over vanilla's", ratio, its, verdict=holds(ratio < 1, its < 1)))
        gain = 100 * (score_of(found, method, "top1") - score_of(found, "vanilla", "top1"))
        gained = theirs[1] - paper["vanilla"][1]
        verdict = holds(gain >= 0, gained >= 0)
        rows.append(Comparison(f"{name}: top-1 over vanilla's, points", gain, gained, verdict=verdict))
        if "dropout" in found and row(found, method) != "dropout":
            ratio, its = (
                score_of(found, method, "ece") / score_of(found, "dropout", "ece"),
                theirs[2] / paper["dropout"][2],
            )
            rows.append(Comparison(f"{name}: ECE over dropout's", ratio, its, verdict=holds(ratio < 1, its < 1)))
            gain = 100 * (score_of(found, method, "top1") - score_of(found, "dropout", "top1"))
            gained = theirs[1] - paper["dropout"][1]
            verdict = holds(gain > 0, gained > 0)
            rows.append(Comparison(f"{name}: top-1 over dropout's, points", gain, gained, verdict=verdict))
    return rows


@experiment("patching/table4", "ResNet-18: accuracy and calibration of every method (CIFAR-100 for ImageNet)")
def table4(context: Context) -> Outcome:
    found = readings(context)
    return Outcome({"readings": found}, table(found, TABLE4, OVERHEAD4), note=about(found, RESNET))


@experiment("patching/table6", "CIFAR-100: accuracy and calibration (ResNet-18 for PyramidNet)")
def table6(context: Context) -> Outcome:
    found = readings(context)
    rows = table(found, TABLE6, OVERHEAD6, skip=("emp_bn", "ecmp_bn"))
    return Outcome({"readings": found}, rows, note=about(found, PYRAMIDNET))


# Tables 9 to 11 and Figure 6: over the number of draws

SLIGHT = 0.5
"""Points of ECE that count as no difference; the paper's own are at most 0.15."""


def by_draws(found: Readings, method: str) -> list[Comparison]:
    """Compare a method's scores at each S with both halves of its table, followed by the gains from draws."""
    rows: list[Comparison] = []
    for network, tables in BY_DRAWS.items():
        for s, paper in tables[row(found, method)].items():
            ours = [reading["by_draws"][str(s)] for reading in found[method]]
            rows += _scored(f"S = {s}, beside the paper's {network}", ours, paper)
    return rows + gains(found, method)


def gains(found: Readings, method: str) -> list[Comparison]:
    """Compare with D.6: more samples improve calibration and accuracy, and the second hundred changes nothing."""
    ours = {key: {s: 100 * mean(r["by_draws"][s][key] for r in found[method]) for s in ("1", "100", "200")}
            for key in ("top1", "ece")}  # fmt: skip
    ece, top1, rows = ours["ece"], ours["top1"], []
    for network, tables in BY_DRAWS.items():
        one, hundred, most = (tables[row(found, method)][s] for s in (1, 100, 200))
        ratio, its = ece["200"] / ece["1"], most[2] / one[2]
        words = f"ECE at S = 200 over S = 1, {network}"
        rows.append(Comparison(words, ratio, its, verdict=holds(ratio < 1, its < 1)))
        gain, its = top1["200"] - top1["1"], most[1] - one[1]
        words = f"top-1 at S = 200 minus S = 1, {network}, points"
        verdict = holds(gain > 0, True) if its > 0 else "the paper's own gain is not above 0"
        rows.append(Comparison(words, gain, its, verdict=verdict))
        change, its = ece["200"] - ece["100"], most[2] - hundred[2]
        words = f"ECE at S = 200 minus S = 100, {network}, points"
        rows.append(Comparison(words, change, its, verdict=holds(abs(change) < SLIGHT, abs(its) < SLIGHT)))
    return rows


def _by_number_of_draws(context: Context, methods: tuple[str, ...]) -> Outcome:
    """Compare all scores of one method at each S, or the gains from draws of several methods."""
    found = readings(context, in_rows(("vanilla", *methods)))
    shown = matching(found, methods)
    if missing := [METHODS[name].label for name in methods if name not in {row(found, each) for each in shown}]:
        raise ValueError(f"There is no reading of {' or '.join(missing)}.")
    rows: list[Comparison] = []
    for method in shown:
        each = by_draws(found, method) if len(methods) == 1 else gains(found, method)
        several = len(shown) > 1
        rows += [replace(r, quantity=f"{label(found, method)}: {r.quantity}") if several else r for r in each]
    note = about(found, f"{RESNET} and {PYRAMIDNET}")
    return Outcome({"readings": found}, rows, _draw_by_number_of_draws(found, shown), note)


for _name, _methods, _title in (
    ("table9", ("emp",), "The effect of the number of draws S = 1, 20, 100, 200: EMP"),
    ("table10", ("ecmp",), "The effect of the number of draws S = 1, 20, 100, 200: ECMP"),
    ("table11", ("dropout",), "The effect of the number of draws S = 1, 20, 100, 200: dropout"),
    ("figure6", ("emp", "ecmp", "dropout"), "Calibration over the number of draws, for EMP, ECMP and dropout"),
):
    experiment(f"patching/{_name}", _title)(partial(_by_number_of_draws, methods=_methods))


STYLE: dict[str, dict[str, Any]] = {
    "vanilla": {"color": "#000000", "marker": "x"},
    "dropout": {"color": "#E69F00", "marker": "s"},
    "emp": {"color": "#0072B2", "marker": "o"},
    "emp_bn": {"color": "#56B4E9", "marker": "^"},
    "ecmp": {"color": "#D55E00", "marker": "D"},
    "ecmp_bn": {"color": "#CC79A7", "marker": "v"},
}
"""Okabe and Ito's colours, which are safe for colour-blind readers."""


def _style(found: Readings, method: str) -> dict[str, Any]:
    """Return the style of the paper's row, with dotted lines for other methods compared with that row."""
    own = row(found, method)
    return {**STYLE[own], **({} if method == own else {"linestyle": ":", "markerfacecolor": "none"})}


@styled
def _draw_by_number_of_draws(found: Readings, methods: Sequence[str]) -> Figure:
    """Draw ECE over S, with a line for each method and a dashed line for vanilla."""
    figure, [[axes]] = canvas(5.0, 3.4)
    for method in methods:
        draws = sorted(int(s) for s in found[method][0]["by_draws"])
        each = [[100 * r["by_draws"][str(s)]["ece"] for r in found[method]] for s in draws]
        errors = [standard_error(values) or 0.0 for values in each]
        style = {**_style(found, method), "markersize": 4, "label": label(found, method)}
        axes.errorbar(draws, [mean(values) for values in each], yerr=errors, **style)
    axes.axhline(100 * score_of(found, "vanilla", "ece"), color="black", linestyle="--", label="vanilla")
    axes.set_xscale("log")
    axes.set_xticks([1, 20, 100, 200], ["1", "20", "100", "200"])
    axes.minorticks_off()
    axes.set(ylim=(0, None), xlabel="draws S", ylabel="expected calibration error (%)")
    axes.legend()
    return figure


# Figures 4, 5 and 7: calibration curves, accuracy over confidence in 20 bins


def curve(seeds: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Return mean confidence and accuracy of each bin, pooling the samples of all seeds; skip bins with few samples."""
    confidence, accuracy = [], []
    for r in range(len(seeds[0]["diagram"]["count"])):
        bins = [{key: seed["diagram"][key][r] for key in ("count", "confidence", "accuracy")} for seed in seeds]
        full = [b for b in bins if b["count"] and b["confidence"] is not None and not isnan(b["confidence"])]
        count = sum(b["count"] for b in full)
        if count >= PAPER_MIN_COUNT * len(seeds):
            confidence.append(sum(b["count"] * b["confidence"] for b in full) / count)
            accuracy.append(sum(b["count"] * b["accuracy"] for b in full) / count)
    return confidence, accuracy


@styled
def draw_curves(found: Readings, methods: Sequence[str]) -> Figure:
    """Draw accuracy over confidence, with a line for each method."""
    figure, [[axes]] = canvas(4.4, 4.2)
    axes.plot([0, 1], [0, 1], color="0.6", linestyle=":", label="perfect")
    for method in methods:
        name = f"{label(found, method)}, ECE {100 * score_of(found, method, 'ece'):.1f} %"
        axes.plot(*curve(found[method]), **_style(found, method), markersize=4, linewidth=1.2, label=name)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="confidence", ylabel="accuracy")
    axes.legend(loc="best")
    return figure


def _curves(context: Context, methods: tuple[str, ...], paper: dict[str, Row], place: str) -> Outcome:
    found = readings(context, in_rows(methods))
    shown = matching(found, methods)
    rows = []
    for name in shown:
        ours, theirs = 100 * score_of(found, name, "ece"), paper[row(found, name)][2]
        better = (ours < 100 * score_of(found, "vanilla", "ece")) == (theirs < paper["vanilla"][2])
        words = f"{'' if better else 'not '}better calibrated than vanilla"
        verdict = "" if name == "vanilla" else words
        rows.append(Comparison(f"{label(found, name)}: ECE %", ours, theirs, verdict=verdict))
    for whole, norms in (("emp", "emp_bn"), ("ecmp", "ecmp_bn")):
        if whole in shown and norms in shown:
            ours, theirs = (
                100 * (score_of(found, whole, "ece") - score_of(found, norms, "ece")),
                paper[whole][2] - paper[norms][2],
            )
            words = f"{label(found, whole)}: ECE minus that of norms alone, points"
            rows.append(Comparison(words, ours, theirs, verdict=holds(ours < 0, theirs < 0)))
    curves = {name: dict(zip(("confidence", "accuracy"), curve(found[name]), strict=True)) for name in shown}
    return Outcome({"curves": curves}, rows, draw_curves(found, shown), about(found, place))


ALL_SHOWN: tuple[str, ...] = ("vanilla", "dropout", "emp_bn", "emp", "ecmp_bn", "ecmp")
for _name, _shown, _paper, _place, _title in (
    ("figure4", SHOWN, TABLE4, RESNET, "of ResNet-18 (CIFAR-100 for ImageNet)"),
    ("figure5", SHOWN, TABLE6, PYRAMIDNET, "on CIFAR-100 (ResNet-18 for PyramidNet)"),
    ("figure7", ALL_SHOWN, TABLE4, RESNET, "with and without a patched output layer (CIFAR-100 for ImageNet)"),
):
    _run = partial(_curves, methods=_shown, paper=_paper, place=_place)
    experiment(f"patching/{_name}", f"Calibration curves {_title}")(_run)
