"""Layer-wise σ and |μ|/σ: over training, as a run recorded them (BYOV's Figures 3 and 6), and at its end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from byov.files import REAL, misfit
from byov.posterior.module import BayesianModule
from byov.runs.header import read_lines

QUANTITIES = {
    "sigma_mean": "mean σ",
    "sigma_max": "maximal σ",
    "snr_mean": "mean |μ|/σ",
    "snr_max": "maximal |μ|/σ",
}
PARTS: dict[str, Any] = {"projector": ("#D55E00", "-"), "predictor": ("#CC79A7", "--")}
"""A student's heads, which the paper tells from the encoder; the encoder's layers are coloured by depth."""
WIDTH = 1 + len(QUANTITIES)
RECORD = {"step": int, "epoch": REAL, "layers": {"*": [(*REAL, type(None))]}}
"""A line of layers.jsonl: of each layer its number of weights, then the quantities."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


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
    """Read the records in a run's `layers.jsonl`; the run is named by its folder or a file in it."""
    file = (run if run.is_dir() else run.parent) / "layers.jsonl"
    if not file.is_file():
        raise ValueError(f"{run} has no layers.jsonl: it has no posterior, or was trained before they were recorded.")
    records = [record for record in read_lines(file) if not misfit(record, RECORD)]
    if not records:
        raise ValueError(f"{file} holds no record: the run has not begun, or the file is another's.")
    layers = list(records[0]["layers"])
    if any(list(r["layers"]) != layers or any(len(found) != WIDTH for found in r["layers"].values()) for r in records):
        raise ValueError(f"{file} is damaged: its records are not all of the same layers.")
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


@torch.no_grad()
def layer_quantiles(q: BayesianModule) -> list[dict[str, Any]]:
    """Return of each random tensor its name, size and shape, and the QUANTILES of σ and |μ|/σ over its weights."""
    mean, std, snr = q.mean(), q.std(), q.snr()
    rows = []
    for name in mean:
        # torch.quantile refuses more than 16 million values; a random million says the same to three digits.
        picked = torch.randperm(mean[name].numel(), generator=torch.Generator().manual_seed(0))[:1_000_000]
        row: dict[str, Any] = {"name": name, "weights": mean[name].numel(), "shape": list(mean[name].shape)}
        for what, values in (("sigma", std[name]), ("snr", snr[name])):
            flat = values.detach().float().cpu().flatten()[picked]
            known = flat[flat.isfinite()]
            row[what] = torch.quantile(known, torch.tensor(QUANTILES)).tolist() if len(known) else None
        rows.append(row)
    return rows
