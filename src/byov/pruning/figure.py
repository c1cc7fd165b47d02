"""The curves of a sweep, drawn: top-1 and ECE over sparsity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from byov.pruning.curves import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by every eye; a line and a marker of its own for grey prints.
STYLES = (("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#009E73", "^", ":"), ("#CC79A7", "D", "-."))


def draw_curves(content: dict[str, Any]) -> Figure:
    """Two panels: accuracy and calibration of what pruning left."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    plot_curves(left, content["curves"], "top1")
    plot_curves(right, content["curves"], "ece")
    left.legend(frameon=False)
    test = content["protocol"]["test"]
    figure.suptitle(f"Pruned without retraining: {test['name']} {test['split']}", fontsize="medium")
    if content["protocol"]["retrained"] != "nothing":
        figure.suptitle(f"Pruned, linear probe refitted: {test['name']} {test['split']}", fontsize="medium")
    return figure


def plot_curves(axes: Axes, curves: Sequence[Curve], what: str = "top1") -> None:
    """One line per model and ranking, the mean over its seeds; the band is their range."""
    import numpy as np

    groups: dict[tuple[str, str], list[Curve]] = {}
    for each in curves:
        groups.setdefault((each["model"], each["by"]), []).append(each)
    for (colour, marker, line), ((model, by), members) in zip(STYLES, groups.items(), strict=False):
        x = 100 * np.asarray(members[0]["sparsity"])
        y = 100 * np.asarray([member[what] for member in members])
        by = "SNR" if by == "snr" else by
        axes.plot(x, y.mean(0), line, color=colour, marker=marker, markersize=4, label=f"{model}, {by}")
        if len(members) > 1:
            axes.fill_between(x, y.min(0), y.max(0), color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("weights removed (%)")
    axes.set_ylabel({"top1": "top-1 accuracy (%)", "ece": "ECE (%)"}[what])
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
