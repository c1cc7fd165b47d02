"""Layer-wise σ and |μ|/σ over training, as a run recorded them (BYOV's Figures 3 and 6)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byov.exploration.drawing import ORDERED, canvas, log_labels, plain, styled, words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUANTITIES = {
    "sigma_mean": "mean σ",
    "sigma_max": "maximal σ",
    "snr_mean": "mean |μ|/σ",
    "snr_max": "maximal |μ|/σ",
}
PARTS: dict[str, Any] = {"projector": ("#D55E00", "-"), "predictor": ("#CC79A7", "--")}
"""A student's heads, which the paper tells from the encoder; the encoder's layers are coloured by depth."""


@dataclass(frozen=True)
class LayerHistory:
    """What each layer's posterior looked like: each quantity by layer, then by record; None where it has no number."""

    steps: list[int]
    epochs: list[float]
    layers: list[str]
    weights: list[int]
    sigma_mean: list[list[float | None]]
    sigma_max: list[list[float | None]]
    snr_mean: list[list[float | None]]
    snr_max: list[list[float | None]]


def layer_history(run: Path) -> LayerHistory:
    """The records in a run's `layers.jsonl`."""
    file = (run if run.is_dir() else run.parent) / "layers.jsonl"
    if not file.is_file():
        raise ValueError(f"{run} has no layers.jsonl: it has no posterior, or was trained before they were recorded.")
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    if not records:
        raise ValueError(f"{file} is empty: the run has not begun.")
    layers = list(records[0]["layers"])
    columns = [
        [[record["layers"][layer][1 + i] for record in records] for layer in layers] for i in range(len(QUANTITIES))
    ]
    return LayerHistory(
        [record["step"] for record in records],
        [record["epoch"] for record in records],
        layers,
        [records[0]["layers"][layer][0] for layer in layers],
        *columns,
    )


@styled
def layers_figure(
    histories: Mapping[str, LayerHistory], quantities: Sequence[str] = tuple(QUANTITIES), title: str = ""
) -> Figure:
    """One column per run, one row per quantity on a common logarithmic axis, one line per layer."""
    import matplotlib
    from matplotlib.lines import Line2D

    width = max(3.6, 2.5 * len(histories) + 0.8)
    made, panels = canvas(
        width, 1.75 * len(quantities) + 0.9, len(quantities), len(histories), sharex="col", sharey="row"
    )
    depth = matplotlib.colormaps[ORDERED]
    heads = False
    for row, quantity in zip(panels, quantities, strict=True):
        for axes, (name, history) in zip(row, histories.items(), strict=True):
            encoder = [layer for layer in history.layers if layer.partition(".")[0] not in PARTS]
            for layer, values in zip(history.layers, getattr(history, quantity), strict=True):
                part = layer.partition(".")[0]
                heads |= part in PARTS
                colour, style = PARTS.get(part) or (depth(0.92 * encoder.index(layer) / max(1, len(encoder) - 1)), "-")
                shown = [float("nan") if value is None else value for value in values]
                axes.plot(history.epochs, shown, style, color=colour, linewidth=1.0, alpha=0.85)
            axes.set_yscale("log")
            plain(axes)
            log_labels(axes.yaxis)
            if row is panels[0]:
                axes.set_title(words(name))
            if row is panels[-1]:
                axes.set_xlabel("epoch")
        row[0].set_ylabel(QUANTITIES[quantity])
    first, last = (Line2D([], [], color=depth(x), label=t) for x, t in ((0.0, "first layer"), (0.92, "last layer")))
    if heads:
        first.set_label("encoder, first layer")
        last.set_label("encoder, last layer")
    lines = [first, last, *(Line2D([], [], color=c, linestyle=s, label=p) for p, (c, s) in PARTS.items() if heads)]
    made.legend(handles=lines, loc="outside lower center", ncols=2 if width < 6 else 4)
    if title:
        made.suptitle(title, fontsize=10)
    return made
