"""BYOV, Figures 3 and 6: layer-wise σ and SNR over training, under the three priors and for several β."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import log10
from statistics import mean
from typing import Any

from byov.evaluation.layers import PARTS, LayerHistory, aggregation, layer_history, per_epoch
from byov.report.figures import layers_figure
from byov.reproduce.byov_runs import BETAS, PRIORS, about_beta, byov_run, handed_in, own_beta
from byov.reproduce.experiment import Comparison, Context, Outcome, experiment

ALIKE = 0.01
"""Decades: two per cent."""
DECADES = "Decades: the mean over layers of |log₁₀ of the ratio|"


@experiment("byov/figure3", "Layer-wise σ and SNR over training, for three priors")
def figure3(context: Context) -> Outcome:
    """Compare the records of a run for each prior by how far apart they end."""
    runs = handed_in(context) if context.runs else {PRIORS[prior]: byov_run(context, prior) for prior in PRIORS}
    histories = {name: per_epoch(layer_history(run)) for name, run in runs.items()}
    beta = None if context.runs else own_beta(context.scale)
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
    points = aggregation(list(histories.values()))
    note = f"{DECADES} in the last epoch. {points} One seed; the paper shows lines and gives no numbers."
    note += about_beta(context)
    return Outcome(data, comparisons, layers_figure(histories), note)


@experiment("byov/figure6", "SNR over training, for several β")
def figure6(context: Context) -> Outcome:
    """Compare the records of a run for each β, all from 0 along a half-cosine under N(0, I), from least to largest."""
    if context.runs:
        runs = handed_in(context)
    else:
        runs = {f"β: 0 → {beta:g}": byov_run(context, beta=beta) for beta in BETAS[context.scale]}
    histories = {name: per_epoch(layer_history(run)) for name, run in runs.items()}
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
    points = aggregation(list(histories.values()))
    note = f"{DECADES} in the last epoch. {points} One seed; the paper has lines."
    return Outcome(data, comparisons, layers_figure(histories, ("snr_mean", "snr_max")), note)


def apart(a: LayerHistory, b: LayerHistory, quantity: str, layers: Sequence[str] | None = None) -> float:
    """Return the mean over layers of |log₁₀| of the ratio of two runs' last values."""
    ends = []
    for history in (a, b):
        last = {layer: values[-1] for layer, values in zip(history.layers, getattr(history, quantity), strict=True)}
        ends.append({layer: value for layer, value in last.items() if value})
    common = [layer for layer in ends[0] if layer in ends[1] and (layers is None or layer in layers)]
    if not common:
        raise ValueError("The runs have no layers in common.")
    return mean(abs(log10(ends[0][layer] / ends[1][layer])) for layer in common)
