"""Layer-wise σ and |μ|/σ over training, as a run recorded them (BYOV's Figures 3 and 6)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
