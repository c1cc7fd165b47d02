"""Probes as a table."""

from __future__ import annotations

from collections.abc import Mapping

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from byov.ssl.probe import ProbeResult

READINGS = {"linear": "linear, μ", "linear_draws": "linear, draws", "knn": "kNN, μ", "knn_draws": "kNN, draws"}


def probe_table(results: Mapping[str, ProbeResult]) -> Table:
    """One row per model and reading, in per cent where a share is meant."""
    table = Table(title="Probes on the frozen encoder, at the mean μ and under draws", title_justify="left", box=SIMPLE)
    table.add_column("model")
    table.add_column("probe", no_wrap=True)
    for name in ("top-1 %", "ECE %", "NLL", "Brier", "reliability"):
        table.add_column(name, justify="right", no_wrap=True)
    for model, result in results.items():
        for i, (reading, label) in enumerate((r, label) for r, label in READINGS.items() if r in result.scores):
            s = result.scores[reading]
            percent = [f"{100 * s.top1:.2f}", f"{100 * s.ece:.2f}"]
            rest = [f"{value:.4f}" for value in (s.nll, s.brier, s.reliability)]
            table.add_row(Text(model if i == 0 else ""), label, *percent, *rest)
        table.add_section()
    return table
