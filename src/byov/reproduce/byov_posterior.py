"""BYOV, Figures 1b, 3, 5, 6 and 7: the posterior and its draws; and a comparison with people's disagreement.

Figures 3 and 6: layer-wise σ and SNR over training, for the three priors and for several β.

Figure 1b: both models are trained with the same β schedule from 0, as in the paper; BYOV is read through a linear probe
fitted under draws. The paper does not define the predictive std of an image; here it is √Σ_c σ_c² over the classes. The
first panel is the paper's; the second shows logarithms, since on easy images the std spans several orders of magnitude.

People: about 50 people labelled each of CIFAR-10's test images (CIFAR-10H). Uncertainty is ranked against the entropy
of their votes. We know of no published comparison of this kind for self-supervised posteriors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from math import log10
from pathlib import Path
from statistics import mean
from typing import Any

from byov.evaluation.alignment import read_alignment
from byov.evaluation.convergence import Convergence
from byov.evaluation.explore import SEVERITY, about, explore
from byov.evaluation.humans import MEASURES, HumanAgreement
from byov.evaluation.layers import PARTS, LayerHistory, aggregation, layer_history, per_epoch
from byov.evaluation.noise import NoiseVariance
from byov.report.figures import EXPLORED, layers_figure
from byov.reproduce.byov_runs import (
    BETAS,
    PRIORS,
    RECENTRED,
    about_beta,
    byol_run,
    byov_run,
    given_runs,
    opened,
    own_beta,
    pretrained,
    supervised,
    supervised_twin,
)
from byov.reproduce.experiment import Comparison, Context, Outcome, Scale, experiment
from byov.runs import Run

ALIKE, TWOFOLD = 0.01, 0.3
"""In decades: about two per cent, and twice as much."""
DECADES = "Decades: the mean over layers of |log₁₀ of the ratio|"
ALIGNED_DRAWS: dict[Scale, int] = {"quick": 200, "full": 1000}
CONVERGENCE_LIMIT: dict[Scale, int | None] = {"quick": None, "full": 10_000}
CONVERGENCE_DRAWS, BOOTSTRAPS = 50, 50
NOISE_DRAWS = 50
HUMAN_DRAWS: dict[Scale, int] = {"quick": 30, "full": 100}
HUMAN_LIMITS: dict[Scale, dict[str, int | None]] = {
    "quick": {"limit": 2000, "train_limit": 5000},
    "full": {"limit": None, "train_limit": None},
}


# Layers


@experiment("byov/figure3", "Layer-wise σ and SNR over training, for three priors")
def figure3(context: Context) -> Outcome:
    """Compare runs with each prior by the distance between their final records."""
    runs = given_runs(context) if context.runs else {PRIORS[prior]: byov_run(context, prior) for prior in PRIORS}
    histories = {name: per_epoch(layer_history(run)) for name, run in runs.items()}
    beta = None if context.runs else own_beta(context.scale)
    data: dict[str, Any] = {"beta_end": beta, "layers": {n: asdict(h) for n, h in histories.items()}}
    base, *others = histories
    comparisons = []
    for other in others:
        sigma, snr = (log_ratio(histories[base], histories[other], name) for name in ("sigma_mean", "snr_mean"))
        near = "SNR is more alike, as in the paper" if snr < sigma else "SNR is not more alike than σ"
        if max(sigma, snr) < ALIKE:
            near = "both are alike; in the paper only SNR is"
        comparisons += [
            Comparison(f"{other} from {base}: mean σ of a layer, in decades", sigma),
            Comparison(f"{other} from {base}: mean SNR of a layer, in decades", snr, verdict=near),
            _largest_snr(f"{other} from {base}", histories[base], histories[other]),
        ]
    points = aggregation(list(histories.values()))
    note = f"{DECADES} in the last epoch. {points} One seed; the paper shows lines and gives no numbers."
    note += about_beta(context)
    return Outcome(data, comparisons, layers_figure(histories), note)


@experiment("byov/figure6", "SNR over training, for several β")
def figure6(context: Context) -> Outcome:
    """Compare runs with several β under N(0, I), each from 0 along a half-cosine, from the smallest to the largest."""
    if context.runs:
        runs = given_runs(context)
    else:
        runs = {f"β: 0 → {beta:g}": byov_run(context, beta=beta) for beta in BETAS[context.scale]}
    histories = {name: per_epoch(layer_history(run)) for name, run in runs.items()}
    data: dict[str, Any] = {"layers": {name: asdict(history) for name, history in histories.items()}}
    first, last = next(iter(histories)), next(reversed(histories))
    comparisons = []
    if first != last:
        heads = [layer for layer in histories[first].layers if layer.partition(".")[0] in PARTS]
        encoder = [layer for layer in histories[first].layers if layer not in heads]
        sigma = log_ratio(histories[first], histories[last], "sigma_mean")
        comparisons.append(Comparison(f"mean σ of a layer, {first} to {last}, in decades", sigma))
        if encoder:
            snr = log_ratio(histories[first], histories[last], "snr_mean", encoder)
            verdict = "a small change, as in the paper" if snr < TWOFOLD else "more than twofold"
            comparisons.append(Comparison("mean SNR of the encoder's layers, likewise", snr, verdict=verdict))
        if heads:
            change = mean(log_ratios(histories[first], histories[last], "snr_mean", heads))
            verdict = "falls with β, as in the paper" if change < 0 else "does not fall with β, unlike in the paper"
            comparisons.append(Comparison("log₁₀ of the heads' mean SNR, change", change, verdict=verdict))
        comparisons.append(_largest_snr(f"{first} to {last}", histories[first], histories[last]))
    points = aggregation(list(histories.values()))
    note = f"{DECADES} in the last epoch. {points} One seed; the paper has lines."
    return Outcome(data, comparisons, layers_figure(histories, ("snr_mean", "snr_max")), note)


def _largest_snr(between: str, a: LayerHistory, b: LayerHistory) -> Comparison:
    largest = log_ratio(a, b, "snr_max")
    verdict = "alike, as in the paper" if largest < TWOFOLD else "more than twofold, unlike in the paper"
    return Comparison(f"{between}: largest SNR of a layer, in decades", largest, verdict=verdict)


def log_ratio(a: LayerHistory, b: LayerHistory, quantity: str, layers: Sequence[str] | None = None) -> float:
    """Return |log₁₀| of the ratio of two runs' final values, averaged over layers."""
    return mean(map(abs, log_ratios(a, b, quantity, layers)))


def log_ratios(a: LayerHistory, b: LayerHistory, quantity: str, layers: Sequence[str] | None = None) -> list[float]:
    """Return log₁₀ of the final value of `b` over that of `a`, for each layer."""
    ends = []
    for history in (a, b):
        last = {layer: values[-1] for layer, values in zip(history.layers, getattr(history, quantity), strict=True)}
        ends.append({layer: value for layer, value in last.items() if value})
    common = [layer for layer in ends[0] if layer in ends[1] and (layers is None or layer in layers)]
    if not common:
        raise ValueError("The runs have no layers in common.")
    return [log10(ends[1][layer] / ends[0][layer]) for layer in common]


# Draws


def _explored(context: Context, item: str, protocol: dict[str, Any], runs: list[Run]) -> dict[str, Any]:
    """Return the numbers of an item of `byov explore`, cached between calls."""
    return context.kept(item, protocol, partial(explore, item, runs, BOOTSTRAPS))


def _sign_in_words(value: float, error: float, positive: str = "positive") -> str:
    if abs(value) <= 3 * error:
        return "indistinguishable from 0"
    return positive if value > 0 else "negative"


@experiment("byov/figure1b", "Predictive standard deviation: supervised BBB against BYOV")
def figure1b(context: Context) -> Outcome:
    """Compare the two models over images: correlations, a Gaussian fit and a kernel density."""
    draws = ALIGNED_DRAWS[context.scale]
    pair = {"BYOV": byov_run(context), "supervised BBB": supervised_twin(context)}
    runs = opened(context, pair, limit=None, samples=draws)
    protocol = {**RECENTRED, "draws": draws, "runs": {run.name: about(run) for run in runs}}
    part = _explored(context, "alignment", protocol, runs)
    linear, log = (read_alignment(values) for values in part["alignment"])
    found = {"": linear, " of logarithms": log}
    comparisons = []
    for words, a in found.items():
        verdict = _sign_in_words(a.pearson, a.pearson_error, "positive, as in the paper")
        comparisons.append(Comparison(f"Pearson correlation{words}", a.pearson, None, a.pearson_error, verdict))
    verdict = "positive" if log.spearman > 3 * log.spearman_error else "indistinguishable from 0"
    comparisons.append(Comparison("Spearman correlation", log.spearman, None, log.spearman_error, verdict))
    for words, a in found.items():
        share = a.fit.coverage["0.5"]
        verdict = "as a Gaussian" if abs(share - 0.5) < 0.1 else "not a Gaussian"
        comparisons.append(Comparison(f"share in the Gaussian's 50 % ellipse{words}", share, 0.5, None, verdict))
    note = (
        f"{len(linear.first):,} test images, {draws} draws (the paper: 50,000 and 1000). The paper gives"
        f" no correlation; 0.5 is the share of a Gaussian.{about_beta(context)}"
    )
    data = {"protocol": protocol, "alignment": part["alignment"]}
    return Outcome(data, comparisons, EXPLORED["alignment"](part), note)


@experiment("byov/figure5", "Predictive mean and standard deviation over the number of draws, by augmentation")
def figure5(context: Context) -> Outcome:
    """Show how the predictive distribution converges with the number of draws, on clean and augmented images."""
    limit = CONVERGENCE_LIMIT[context.scale]
    runs = opened(context, {"BYOV": byov_run(context)}, limit, samples=CONVERGENCE_DRAWS)
    settings = {"samples": CONVERGENCE_DRAWS, "bootstraps": BOOTSTRAPS, "limit": limit}
    protocol = {**RECENTRED, **settings, "severity": SEVERITY, "run": about(runs[0])}
    part = _explored(context, "convergence", protocol, runs)
    found = {shift: Convergence(**values) for shift, values in part["BYOV"].items()}
    clean = found["clean"]
    fall, ideal = clean.image_spread[-1] / clean.image_spread[0], 50**-0.5
    drift = max(abs(c.mean[-1] - c.mean[0]) for c in found.values())
    most = max(c.mean_spread[0] for c in found.values())
    settled = next(k for k, s in zip(clean.draws, clean.std, strict=True) if s > 0.9 * clean.std[-1])
    falls = "falls to 0 as 1/√K" if abs(fall / ideal - 1) < 0.25 else "does not fall as 1/√K"
    stable = "stable, as in the paper" if drift < 2 * most else "drifts"
    comparisons = [
        Comparison("spread of an image's mean, 50 draws to one", fall, ideal, None, falls),
        Comparison("largest drift of the expectation from 1 to 50 draws", drift, None, most, stable),
        Comparison("draws after which the predictive std is within 10 %", settled),
    ]
    note = "Independent draws give 1/√50; the paper shows lines and gives no numbers. One seed."
    note += about_beta(context)
    return Outcome({"protocol": protocol, "convergence": part}, comparisons, EXPLORED["convergence"](part), note)


@experiment("byov/figure7", "Variance after encoder, projector and predictor under Gaussian noise")
def figure7(context: Context) -> Outcome:
    """Compare the variance of the stages with each other, and its mean and spread across noise levels."""
    runs = opened(context, {"BYOV": byov_run(context)}, samples=NOISE_DRAWS)
    protocol = {"draws": NOISE_DRAWS, "run": about(runs[0])}
    part = _explored(context, "noise", protocol, runs)
    found = NoiseVariance(**part["BYOV"])
    comparisons = []
    for pair, rank in found.correlation.items():
        verdict = "positive, as in the paper" if rank > 0.1 else "not positive"
        comparisons.append(Comparison(f"Spearman: {pair}", rank, verdict=verdict))
    for stage, by_noise, variation in zip(found.stages, found.variance, found.variation, strict=True):
        first, last = (sum(values) / len(values) for values in (by_noise[0], by_noise[-1]))
        grows = "grows, as in the paper" if last > first else "shrinks"
        comparisons.append(Comparison(f"variance after {stage}, most noise to none", last / first, verdict=grows))
        ratio = variation[-1] / variation[0]
        tighter = "concentrates, as in the paper" if ratio < 1 else "does not concentrate"
        comparisons.append(Comparison(f"relative deviation after {stage}, likewise", ratio, verdict=tighter))
    note = f"{len(found.variance[0][0])} test images, noise up to {found.noise[-1]:g} of the pixels' range. One seed."
    return Outcome({"protocol": protocol, "noise": part}, comparisons, EXPLORED["noise"](part), note)


@experiment("byov/humans", "Uncertainty and people's disagreement on CIFAR-10: BYOL, BYOV and supervised")
def humans(context: Context) -> Outcome:
    """Correlate each model's uncertainty with the entropy of people's votes."""
    draws = HUMAN_DRAWS[context.scale]
    runs = opened(context, _cifar10(context), samples=draws, **HUMAN_LIMITS[context.scale])
    protocol = {**RECENTRED, "draws": draws, "runs": {run.name: about(run) for run in runs}}
    part = _explored(context, "humans", protocol, runs)
    found = {name: HumanAgreement(**values) for name, values in part.items()}
    comparisons = []
    for name, agreement in found.items():
        comparisons.append(Comparison(f"{name}: accuracy", agreement.accuracy))
        for measure, (value, error) in agreement.spearman.items():
            verdict = "uncertain where people are" if value > 3 * error else "indistinguishable from 0"
            comparisons.append(Comparison(f"{name}: Spearman, {MEASURES[measure]}", value, None, error, verdict))
    some = next(iter(found.values()))
    note = (
        f"{some.images:,} test images, {100 * some.contested:.1f} % contested (a fifth of people or more chose another"
        " class). One seed; errors are bootstraps over images."
    )
    return Outcome({"protocol": protocol, "humans": part}, comparisons, EXPLORED["humans"](part), note)


def _cifar10(context: Context) -> dict[str, Path]:
    """Return runs on CIFAR-10; at scale quick on a subset at low resolution."""
    if context.scale == "full" or context.runs:
        return {"BYOL": byol_run(context), "BYOV": byov_run(context), "supervised BBB": supervised(context)}
    return {
        "BYOL": pretrained(context, "cifar_byol", recipe="cifar10_small_byol"),
        "BYOV": pretrained(context, "cifar_byov", recipe="cifar10_small_byov"),
        "supervised BBB": supervised(context, "cifar_supervised", recipe="cifar10_small_train"),
    }
