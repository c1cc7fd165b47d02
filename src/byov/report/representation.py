"""The figure of what a network knows without labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from byov.evaluation.representation import MEASURES
from byov.report.drawing import COLOURS, MARKERS, canvas, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES = ("spread_projector", "augmented_spread_projector", "spread_encoder", "augmented_spread_encoder")
"""What images are ordered by, the first that there is: BYOL's loss is one of the directions of projections."""


@styled
def representation_figure(found: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw a row for each data set: R-AUROC by measure and run; R@1 over the images' order, or the AUROC if foreign."""
    sets = list(dict.fromkeys(name for run in found.values() for name in run["data"]))
    made, rows = canvas(9.6, 3.3 * len(sets), len(sets), 2, width_ratios=[1.6, 1])
    for (bars, side), data in zip(rows, sets, strict=True):
        here = {name: run["data"][data] for name, run in found.items() if data in run["data"]}
        labels = [f"{name}: R@1 {100 * each['r_at_1'][0]:.1f} %" for name, each in here.items()]
        _dots(bars, [each["r_auroc"] for each in here.values()], labels)
        bars.set(xlabel="R-AUROC", title=data)
        for i, each in enumerate(here.values()):
            measure = next((m for m in CURVES if m in each["curve"]), "negative_norm")
            share = [100 * value for value in each["curve"][measure]]
            tenths = [100 * (k + 0.5) / len(share) for k in range(len(share))]
            style: dict[str, Any] = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
            side.plot(tenths, share, label=MEASURES[measure], markersize=4, linewidth=1.3, **style)
        side.set(xlabel="images from the surest to the least sure (%)", ylabel="R@1 (%)", xlim=(0, 100))
        side.legend()
        plain(side)
    foreign = {name: run["ood"] for name, run in found.items() if run["ood"]}
    if foreign:
        for (_, side), data in zip(rows[1:], sets[1:], strict=True):
            side.clear()
            _dots(side, [each[data] for each in foreign.values()], list(foreign))
            side.set(xlabel="AUROC: foreign from known", title=f"{data} from {sets[0]}")
    return made


def _dots(axes: Axes, readings: Sequence[Mapping[str, Sequence[float] | None]], labels: Sequence[str]) -> None:
    """Draw a point with its error for each measure and run; the line is chance."""
    measures = [m for m in MEASURES if any(m in each for each in readings)]
    for i, (each, label) in enumerate(zip(readings, labels, strict=True)):
        there = [(k, *values) for k, m in enumerate(measures) if (values := each.get(m)) is not None]
        at = [k + 0.5 * ((i + 0.5) / len(readings) - 0.5) for k, *_ in there]
        style: dict[str, Any] = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        x, error = [v for _, v, _ in there], [e for _, _, e in there]
        axes.errorbar(x, at, xerr=error, linestyle="none", markersize=4, elinewidth=0.9, label=label, **style)
    axes.axvline(0.5, color="0.4", linewidth=0.9, linestyle=":")
    axes.set_yticks(range(len(measures)), [MEASURES[m] for m in measures])
    axes.set_ylim(len(measures) - 0.5, -0.5)
    axes.legend()
    plain(axes)
