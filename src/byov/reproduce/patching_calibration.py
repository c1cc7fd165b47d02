"""Figures 4, 5 and 7 of the patching paper: calibration curves, accuracy over confidence in 20 bins."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Any

from byov.reproduce.experiment import Comparison, Context, Outcome, experiment
from byov.reproduce.patching_accuracy import COLOURS, MARKERS, TABLE4, TABLE6, Readings, Row, about, of
from byov.reproduce.patching_runs import METHODS, readings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIN_COUNT = 6
"""Bins with fewer samples are not drawn (D.2)."""


def curve(seeds: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Mean confidence and accuracy of each bin, all seeds' samples together; bins of too few samples left out."""
    confidence, accuracy = [], []
    for r in range(len(seeds[0]["diagram"]["count"])):
        bins = [{key: seed["diagram"][key][r] for key in ("count", "confidence", "accuracy")} for seed in seeds]
        full = [b for b in bins if b["count"] and b["confidence"] is not None and not isnan(b["confidence"])]
        count = sum(b["count"] for b in full)
        if count >= MIN_COUNT * len(seeds):
            confidence.append(sum(b["count"] * b["confidence"] for b in full) / count)
            accuracy.append(sum(b["count"] * b["accuracy"] for b in full) / count)
    return confidence, accuracy


def draw(found: Readings, methods: tuple[str, ...]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="0.6", linestyle=":", label="perfect")
    for method in methods:
        label = f"{METHODS[method].label}, ECE {100 * of(found, method, 'ece'):.1f} %"
        axes.plot(
            *curve(found[method]),
            color=COLOURS[method],
            marker=MARKERS[method],
            markersize=4,
            linewidth=1.2,
            label=label,
        )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.set_aspect("equal")
    axes.set_xlabel("confidence")
    axes.set_ylabel("accuracy")
    axes.legend(frameon=False, fontsize=8, loc="best")
    return figure


def _figure(context: Context, methods: tuple[str, ...], paper: dict[str, Row], place: str) -> Outcome:
    found = readings(context, methods)
    shown = tuple(name for name in methods if name in found)
    rows = []
    for name in shown:
        ours, theirs = 100 * of(found, name, "ece"), paper[name][2]
        verdict = ""
        if name != "vanilla":
            better = (ours < 100 * of(found, "vanilla", "ece")) == (theirs < paper["vanilla"][2])
            verdict = "better calibrated than vanilla" if better else "not better calibrated than vanilla"
        rows.append(Comparison(f"{METHODS[name].label}: ECE %", ours, theirs, verdict=verdict))
    curves = {name: dict(zip(("confidence", "accuracy"), curve(found[name]), strict=True)) for name in shown}
    return Outcome({"curves": curves}, rows, draw(found, shown), about(found, place))


@experiment("patching/figure4", "Calibration curves of ResNet-18 (CIFAR-100 for ImageNet)")
def figure4(context: Context) -> Outcome:
    return _figure(context, ("vanilla", "dropout", "emp", "ecmp"), TABLE4, "ResNet-18 on ImageNet")


@experiment("patching/figure5", "Calibration curves on CIFAR-100 (ResNet-18 for PyramidNet)")
def figure5(context: Context) -> Outcome:
    return _figure(context, ("vanilla", "dropout", "emp", "ecmp"), TABLE6, "PyramidNet-110 (α = 270) on CIFAR-100")


@experiment("patching/figure7", "Calibration curves with and without a patched output layer (CIFAR-100 for ImageNet)")
def figure7(context: Context) -> Outcome:
    methods = ("vanilla", "dropout", "emp_bn", "emp", "ecmp_bn", "ecmp")
    return _figure(context, methods, TABLE4, "ResNet-18 on ImageNet")
