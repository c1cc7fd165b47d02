"""How the figures look: colours that most eyes can tell apart, and files that are the same for the same numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""Okabe and Ito's, from dark to light."""
ORDERED = "viridis"
"""For what has an order: depth, or the strength of noise."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_STYLE: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "font.size": 8.5,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "byov",
}


def canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: object
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of so many inches, without pyplot's state, and its panels by row and column."""
    with matplotlib.rc_context(_STYLE):
        made = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(made)
        panels = made.subplots(rows, columns, squeeze=False, **options)  # type: ignore[call-overload]
    return made, [list(row) for row in panels]


def plain(axes: Axes) -> None:
    """A light grid below what is drawn."""
    axes.grid(color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)


def save(made: Figure, stem: Path) -> list[Path]:
    """STEM.png and STEM.svg, the same bytes for the same figure."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    with matplotlib.rc_context(_STYLE):
        made.savefig(paths[0], dpi=200)
        made.savefig(paths[1], metadata={"Date": None})
    return paths
