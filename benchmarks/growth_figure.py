"""The figure of `growth.py`: time above, memory below, on logarithmic axes, with the slope of proportion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

LABELS = {
    "parameters": "parameters of the network, in millions",
    "batch": "batch",
    "draws": "draws of a prediction",
}
STYLE = {
    "deterministic": ("#000000", "o", "deterministic step"),
    "byov Gaussian": ("#0072B2", "s", "step, Gaussian over every weight"),
    "draws": ("#D55E00", "^", "prediction"),
}
"""Colours that the colour-blind can tell apart (Okabe and Ito), and marks for the rest."""
UNITS = {"ms": "milliseconds", "mib": "peak memory, MiB"}


def draw(result: dict[str, Any], path: Path) -> None:
    """Write PATH.svg and PATH.png."""
    figure = Figure(figsize=(11, 6.2), layout="constrained")
    axes = figure.subplots(2, 3, squeeze=False)
    for column, (sweep, label) in enumerate(LABELS.items()):
        points = sorted(result["sweeps"][sweep].values(), key=lambda point: point["at"])
        for row, unit in enumerate(UNITS):
            panel(axes[row][column], points, unit)
            axes[row][column].set_ylabel(UNITS[unit])
        axes[1][column].set_xlabel(label)
    handles = {line.get_label(): line for ax in axes.flat for line in ax.get_lines()}
    figure.legend(handles.values(), [str(name) for name in handles], loc="outside upper center", ncols=4, frameon=False)
    about = result["about"]
    text = f"{about['hardware']}, torch {about['torch']}, {about['how']}; ViT, 32 px, patch 4, depth 12"
    figure.supxlabel(f"{text}; width {about['width']} and batch {about['batch']} where they do not grow", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    for ending in ("svg", "png"):
        figure.savefig(path.with_suffix(f".{ending}"), dpi=150, metadata={"Date": None} if ending == "svg" else None)


def panel(ax: Axes, points: list[dict[str, Any]], unit: str) -> None:
    if not points:
        return
    at = [point["at"] for point in points]
    for name in points[0][unit]:
        colour, mark, label = STYLE[name]
        ax.plot(at, [point[unit][name] for point in points], color=colour, marker=mark, label=label)
    last = points[-1][unit][list(points[0][unit])[-1]]
    ax.plot(at, [last * x / at[-1] for x in at], color="#999999", linestyle=":", label="in proportion")
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(at, [f"{x / 1e6:.2g}" if x < 1e7 else f"{x / 1e6:.0f}" for x in at] if at[0] >= 1e5 else at)
    ax.tick_params(axis="x", labelsize=8)
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.grid(True, which="major", color="#dddddd", linewidth=0.6)
