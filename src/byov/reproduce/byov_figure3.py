"""BYOV, Figure 3: layer-wise σ and SNR over training under the three priors; their means and maxima."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import log10
from statistics import mean
from typing import Any

from byov.exploration.layers import LayerHistory, layer_history, layers_figure
from byov.reproduce.byov_runs import BASE, PRIORS, byov_run, handed_in
from byov.reproduce.experiment import Comparison, Context, Outcome, experiment

ALIKE = 0.01
"""Decades: two per cent."""


@experiment("byov/figure3", "Layer-wise σ and SNR over training, for three priors")
def figure3(context: Context) -> Outcome:
    """The records of a run for each prior, and how far apart they end."""
    runs = handed_in(context) if context.runs else {PRIORS[prior]: byov_run(context, prior) for prior in PRIORS}
    histories = {name: layer_history(run) for name, run in runs.items()}
    beta = None if context.runs else BASE[context.scale]
    data: dict[str, Any] = {"beta_end": beta, "layers": {n: asdict(h) for n, h in histories.items()}}
    base, *others = histories
    comparisons = []
    for other in others:
        sigma, snr = (apart(histories[base], histories[other], name) for name in ("sigma_mean", "snr_mean"))
        near = "SNR is the more alike, as in the paper" if snr < sigma else "SNR is not more alike than σ"
        if max(sigma, snr) < ALIKE:
            near = "both alike; in the paper only SNR is"
        comparisons += [
            Comparison(f"{other} from {base}: mean σ of a layer, in decades", sigma),
            Comparison(f"{other} from {base}: mean SNR of a layer, in decades", snr, verdict=near),
        ]
    note = (
        "Decades: the mean over layers of |log₁₀ of the ratio| at the end of training. One seed; the paper shows lines"
        " and gives no numbers."
    )
    return Outcome(data, comparisons, layers_figure(histories), note)


def apart(a: LayerHistory, b: LayerHistory, quantity: str, layers: Sequence[str] | None = None) -> float:
    """The mean over layers of |log₁₀| of the ratio of two runs' last values."""
    ends = []
    for history in (a, b):
        last = {layer: values[-1] for layer, values in zip(history.layers, getattr(history, quantity), strict=True)}
        ends.append({layer: value for layer, value in last.items() if value})
    common = [layer for layer in ends[0] if layer in ends[1] and (layers is None or layer in layers)]
    if not common:
        raise ValueError("The runs have no layers in common.")
    return mean(abs(log10(ends[0][layer] / ends[1][layer])) for layer in common)
