"""Layer-wise σ and |μ|/σ: during training, from a run's records (BYOV's Figures 3 and 6), and at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from byov.files import REAL, mismatch
from byov.posterior.module import BayesianModule
from byov.runs.header import read_lines

QUANTITIES = {
    "sigma_mean": "mean σ",
    "sigma_max": "maximal σ",
    "snr_mean": "mean |μ|/σ",
    "snr_max": "maximal |μ|/σ",
}
PARTS: dict[str, Any] = {"projector": ("#D55E00", "-"), "predictor": ("#CC79A7", "--")}
"""The style of a student's heads, which the paper separates from the encoder; encoder layers are coloured by depth."""
WIDTH = 1 + len(QUANTITIES)
RECORD = {"step": int, "epoch": REAL, "layers": {"*": [(*REAL, type(None))]}}
"""A line of layers.jsonl: for each layer its number of weights, then the quantities."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class LayerHistory:
    """The record of each layer's posterior: each quantity by layer, then by record; None where it has no value."""

    steps: list[int]
    epochs: list[float]
    layers: list[str]
    weights: list[int]
    sigma_mean: list[list[float | None]]
    sigma_max: list[list[float | None]]
    snr_mean: list[list[float | None]]
    snr_max: list[list[float | None]]
    records: list[int] | None = None
    """The number of records behind each point; None if each point is one record, taken after one step."""


def layer_history(run: Path) -> LayerHistory:
    """Read a run's `layers.jsonl`; `run` is its folder or a file in it."""
    file = (run if run.is_dir() else run.parent) / "layers.jsonl"
    if not file.is_file():
        raise ValueError(
            f"{run} has no layers.jsonl: it trained no posterior (SWAG's comes from plain training), or it was trained"
            " by a version that did not record layers."
        )
    records = [record for record in read_lines(file) if not mismatch(record, RECORD)]
    if not records:
        raise ValueError(f"{file} holds no records: the run has not started, or the file was not written by byov.")
    layers = list(records[0]["layers"])
    if any(list(r["layers"]) != layers or any(len(found) != WIDTH for found in r["layers"].values()) for r in records):
        raise ValueError(f"{file} is damaged: its records list different layers.")
    columns: dict[str, Any] = {
        quantity: [[record["layers"][layer][1 + i] for record in records] for layer in layers]
        for i, quantity in enumerate(QUANTITIES)
    }
    return LayerHistory(
        [record["step"] for record in records],
        [record["epoch"] for record in records],
        layers,
        [records[0]["layers"][layer][0] for layer in layers],
        **columns,
    )


def per_epoch(history: LayerHistory) -> LayerHistory:
    """Aggregate records by epoch: means of means, maxima of maxima (BYOV's footnote 5).

    The start, before any step, is a separate point. The paper aggregates every step of an epoch; here only about 100
    steps of a run are recorded. In a run with more epochs than that, a point is one step, and some epochs have none.
    """
    members: dict[int, list[int]] = {}
    for i, epoch in enumerate(history.epochs):
        members.setdefault(ceil(epoch), []).append(i)

    def joined(quantity: str) -> list[list[float | None]]:
        join = max if quantity.endswith("max") else fmean
        rows = []
        for values in getattr(history, quantity):
            known = [[values[i] for i in group if values[i] is not None] for group in members.values()]
            rows.append([join(group) if group else None for group in known])
        return rows

    columns: dict[str, Any] = {quantity: joined(quantity) for quantity in QUANTITIES}
    steps, records = [history.steps[group[-1]] for group in members.values()], [len(g) for g in members.values()]
    return replace(history, steps=steps, epochs=[float(epoch) for epoch in members], records=records, **columns)


def aggregation(histories: Sequence[LayerHistory]) -> str:
    """Describe in one sentence what a point of `per_epoch` histories aggregates."""
    counts = [count for history in histories for count in (history.records or [1])[1:]] or [1]
    least, most = min(counts), max(counts)
    missing = any(len(h.epochs) - 1 < h.epochs[-1] for h in histories if h.epochs)
    if most == 1:
        point = "Each point shows the weights after one step"
        return f"{point}: the run recorded fewer steps than it has epochs." if missing else f"{point} of its epoch."
    how_many = f"{most}" if least == most else f"{least} to {most}"
    return f"Each point aggregates the {how_many} recorded steps of its epoch: means of means, maxima of maxima."


@torch.no_grad()
def layer_quantiles(q: BayesianModule) -> list[dict[str, Any]]:
    """Return the name, size and shape of each random tensor, and the QUANTILES of σ and |μ|/σ over its weights."""
    mean, std, snr = q.mean(), q.std(), q.snr()
    rows = []
    for name in mean:
        # torch.quantile is limited to 16 million values; a random million agrees to three digits.
        picked = torch.randperm(mean[name].numel(), generator=torch.Generator().manual_seed(0))[:1_000_000]
        row: dict[str, Any] = {"name": name, "weights": mean[name].numel(), "shape": list(mean[name].shape)}
        for what, values in (("sigma", std[name]), ("snr", snr[name])):
            flat = values.detach().float().cpu().flatten()[picked]
            known = flat[flat.isfinite()]
            row[what] = torch.quantile(known, torch.tensor(QUANTILES)).tolist() if len(known) else None
        rows.append(row)
    return rows
