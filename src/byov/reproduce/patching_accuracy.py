"""Tables 4, 6 and 9 to 11, and Figure 6, of the patching paper: accuracy and calibration, by method and by S."""

from __future__ import annotations

from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from byov.reproduce.experiment import Comparison, Context, Outcome, experiment
from byov.reproduce.patching_runs import METHODS, readings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Readings = dict[str, list[dict[str, Any]]]
Row = tuple[float, float, float, float]

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
BY_DRAWS: dict[str, dict[int, Row]] = {  # Tables 9 to 11, PyramidNet on CIFAR-100
    "emp": {1: (90.9, 72.2, 21.2, 50.1), 20: (91.6, 73.2, 14.2, 30.0), 100: (91.7, 74.2, 13.6, 30.3)},
    "ecmp": {1: (89.3, 69.3, 23.9, 53.0), 20: (91.6, 72.9, 9.35, 21.4), 100: (91.8, 72.7, 8.81, 18.2)},
    "dropout": {1: (91.0, 72.0, 21.8, 54.2), 20: (91.4, 72.3, 21.0, 50.7), 100: (91.1, 72.2, 21.0, 51.9)},
}
for _method, _rows in BY_DRAWS.items():
    _rows[200] = TABLE6[_method]


def about(found: Readings, paper: str) -> str:
    """Whose place our network and data take."""
    one = next(iter(found.values()))[0]
    easy = (
        " On digits nothing is overconfident, so there is little to calibrate: this only shows how the table is made."
    )
    return (
        f"Ours: {one['network']} on {one['data']}, in the place of the paper's {paper}; so the absolute numbers differ,"
        " and what can agree is the order of the methods. Last epoch, 20 bins, bins of at most 5 samples removed."
        + (easy if one["data"] == "digits" else "")
    )


def spread(values: list[float]) -> float | None:
    """The standard error of a mean; None for a single seed."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def last(reading: dict[str, Any]) -> dict[str, float]:
    """The scores under all draws; a plain network's only ones."""
    return reading["by_draws"][max(reading["by_draws"], key=int)]


def of(found: Readings, method: str, key: str) -> float:
    return mean(last(reading)[key] for reading in found[method])


def table(found: Readings, paper: dict[str, Row], skip: tuple[str, ...] = ()) -> list[Comparison]:
    """Every method and column, then the claims that the paper makes of them."""
    rows: list[Comparison] = []
    base = mean(reading["parameters"] for reading in found["vanilla"])
    for method in (name for name in METHODS if name in found and name not in skip):
        label = METHODS[method].label
        rows.append(Comparison(f"{label}: overhead %", 100 * (found[method][0]["parameters"] / base - 1)))
        for i, (key, heading) in enumerate(COLUMNS.items()):
            values = [100 * last(reading)[key] for reading in found[method]]
            theirs = paper[method][i] if method in paper else None
            rows.append(Comparison(f"{label}: {heading}", mean(values), theirs, spread(values)))
        stacked = [reading["stacked"] for reading in found[method] if reading.get("stacked")]
        for key in ("top1", "ece") if stacked else ():
            values = [100 * each[key] for each in stacked]
            rows.append(Comparison(f"{label}, stacked: {COLUMNS[key]}", mean(values), None, spread(values)))
    return rows + claims(found, paper)


def claims(found: Readings, paper: dict[str, Row]) -> list[Comparison]:
    """Better calibrated than vanilla, and no less accurate."""
    rows = []
    for method in ("ecmp", "emp", "dropout"):
        if method not in found:
            continue
        label = METHODS[method].label
        ratio, theirs = of(found, method, "ece") / of(found, "vanilla", "ece"), paper[method][2] / paper["vanilla"][2]
        verdict = "holds" if (ratio < 1) == (theirs < 1) else "does not hold"
        rows.append(Comparison(f"{label}: ECE over vanilla's", ratio, theirs, verdict=verdict))
        gain = 100 * (of(found, method, "top1") - of(found, "vanilla", "top1"))
        gained = paper[method][1] - paper["vanilla"][1]
        verdict = "holds" if (gain >= 0) == (gained >= 0) else "does not hold"
        rows.append(Comparison(f"{label}: top-1 over vanilla's, points", gain, gained, verdict=verdict))
    return rows


@experiment("patching/table4", "ResNet-18: accuracy and calibration of every method (CIFAR-100 for ImageNet)")
def table4(context: Context) -> Outcome:
    found = readings(context)
    return Outcome({"readings": found}, table(found, TABLE4), note=about(found, "ResNet-18 on ImageNet"))


@experiment("patching/table6", "CIFAR-100: accuracy and calibration (ResNet-18 for PyramidNet)")
def table6(context: Context) -> Outcome:
    found = readings(context)
    rows = table(found, TABLE6, skip=("emp_bn", "ecmp_bn"))
    return Outcome({"readings": found}, rows, note=about(found, "PyramidNet-110 (α = 270) on CIFAR-100"))


def by_draws(found: Readings, method: str) -> list[Comparison]:
    rows = []
    for s, paper in BY_DRAWS[method].items():
        for i, (key, heading) in enumerate(COLUMNS.items()):
            values = [100 * reading["by_draws"][str(s)][key] for reading in found[method]]
            rows.append(Comparison(f"S = {s}: {heading}", mean(values), paper[i], spread(values)))
    few, many = (mean(r["by_draws"][s]["ece"] for r in found[method]) for s in ("1", "200"))
    theirs = BY_DRAWS[method][200][2] / BY_DRAWS[method][1][2]
    verdict = "holds" if (many < few) == (theirs < 1) else "does not hold"
    rows.append(Comparison("ECE at S = 200 over S = 1", many / few, theirs, verdict=verdict))
    return rows


def _of_method(context: Context, method: str) -> Outcome:
    found = readings(context, ["vanilla", method])
    note = about(found, "PyramidNet-110 (α = 270) on CIFAR-100")
    return Outcome({"readings": found}, by_draws(found, method), _over_draws(found, (method,)), note)


@experiment("patching/table9", "The effect of the number of draws S = 1, 20, 100, 200: EMP")
def table9(context: Context) -> Outcome:
    return _of_method(context, "emp")


@experiment("patching/table10", "The effect of the number of draws S = 1, 20, 100, 200: ECMP")
def table10(context: Context) -> Outcome:
    return _of_method(context, "ecmp")


@experiment("patching/table11", "The effect of the number of draws S = 1, 20, 100, 200: dropout")
def table11(context: Context) -> Outcome:
    return _of_method(context, "dropout")


@experiment("patching/figure6", "Calibration over the number of draws, for EMP, ECMP and dropout")
def figure6(context: Context) -> Outcome:
    methods = ("emp", "ecmp", "dropout")
    found = readings(context, ["vanilla", *methods])
    rows = []
    for method in methods:
        last_row = by_draws(found, method)[-1]
        label = f"{METHODS[method].label}: {last_row.quantity}"
        rows.append(Comparison(label, last_row.ours, last_row.paper, verdict=last_row.verdict))
    note = about(found, "ResNet-18 on ImageNet and PyramidNet on CIFAR-100")
    return Outcome({"readings": found}, rows, _over_draws(found, methods), note)


COLOURS = {
    "vanilla": "#000000",
    "dropout": "#E69F00",
    "emp": "#0072B2",
    "emp_bn": "#56B4E9",
    "ecmp": "#D55E00",
    "ecmp_bn": "#CC79A7",
}
"""Okabe and Ito's, which the colour-blind can tell apart."""
MARKERS = {"vanilla": "x", "dropout": "s", "emp": "o", "emp_bn": "^", "ecmp": "D", "ecmp_bn": "v"}


def _over_draws(found: Readings, methods: tuple[str, ...]) -> Figure:
    """ECE over S, a line for each method, vanilla dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.0, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for method in methods:
        draws = sorted(int(s) for s in found[method][0]["by_draws"])
        each = [[100 * r["by_draws"][str(s)]["ece"] for r in found[method]] for s in draws]
        errors = [spread(values) or 0.0 for values in each]
        axes.errorbar(
            draws,
            [mean(values) for values in each],
            yerr=errors,
            color=COLOURS[method],
            marker=MARKERS[method],
            markersize=4,
            label=METHODS[method].label,
        )
    axes.axhline(100 * of(found, "vanilla", "ece"), color=COLOURS["vanilla"], linestyle="--", label="vanilla")
    axes.set_xscale("log")
    axes.set_xticks([1, 20, 100, 200], ["1", "20", "100", "200"])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("draws S")
    axes.set_ylabel("expected calibration error (%)")
    axes.legend(frameon=False, fontsize=8)
    return figure
