"""BYOV, Figure 6: layer-wise SNR over training for several β, all from 0 along a half-cosine, prior N(0, I)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from byov.exploration.layers import PARTS, layer_history, layers_figure
from byov.reproduce.byov_figure3 import apart
from byov.reproduce.byov_runs import BETAS, byov_run, handed_in
from byov.reproduce.experiment import Comparison, Context, Outcome, experiment


@experiment("byov/figure6", "SNR over training, for several β")
def figure6(context: Context) -> Outcome:
    """The records of a run for each β, and how far SNR and σ are apart from the smallest β to the largest."""
    if context.runs:
        runs = handed_in(context)
    else:
        runs = {f"β: 0 → {beta:g}": byov_run(context, beta=beta) for beta in BETAS[context.scale]}
    histories = {name: layer_history(run) for name, run in runs.items()}
    data: dict[str, Any] = {"layers": {name: asdict(history) for name, history in histories.items()}}
    first, last = next(iter(histories)), next(reversed(histories))
    comparisons = []
    if first != last:
        heads = [layer for layer in histories[first].layers if layer.partition(".")[0] in PARTS]
        encoder = [layer for layer in histories[first].layers if layer not in heads]
        sigma = apart(histories[first], histories[last], "sigma_mean")
        comparisons.append(Comparison(f"mean σ of a layer, {first} to {last}, in decades", sigma))
        for words, layers in (("encoder's", encoder), ("heads'", heads)):
            if layers:
                snr = apart(histories[first], histories[last], "snr_mean", layers)
                verdict = "a small change, as in the paper" if snr < 0.3 else "more than twofold"
                comparisons.append(Comparison(f"mean SNR of the {words} layers, likewise", snr, verdict=verdict))
    note = "Decades: the mean over layers of |log₁₀ of the ratio| when training ends. One seed; the paper has lines."
    return Outcome(data, comparisons, layers_figure(histories, ("snr_mean", "snr_max")), note)
