"""Ours, beside BYOV's figures: is a model unsure where people disagree? CIFAR-10H, BYOL, BYOV and supervised BBB.

About 50 people named each of CIFAR-10's test images; the entropy of their votes is what uncertainty is ranked against.
We know of no published comparison of this kind for self-supervised posteriors.
"""

from __future__ import annotations

from pathlib import Path

from byov.exploration.humans import MEASURES, HumanAgreement, humans_figure
from byov.exploration.items import ITEMS
from byov.reproduce.byov_runs import BASE, byol_run, byov_run, opened, pretrained, supervised
from byov.reproduce.experiment import Comparison, Context, Outcome, Scale, experiment

DRAWS: dict[Scale, int] = {"quick": 30, "full": 100}
SMALL = ("data.name=cifar10", "data.image_size=16", "data.holdout=0.8", "train.epochs=8", "train.warmup=1")
"""At scale "quick" a tenth of the pixels and a fifth of CIFAR-10: minutes on a CPU, and far from a good model."""
CROPS = tuple(f"views.{view}.{setting}" for view in ("first", "second") for setting in ("flip=0.5", "area=[0.2, 1.0]"))
LIMITS: dict[Scale, dict[str, int | None]] = {
    "quick": {"limit": 2000, "train_limit": 5000},
    "full": {"limit": None, "train_limit": None},
}


@experiment("byov/humans", "Uncertainty beside people's disagreement on CIFAR-10: BYOL, BYOV and supervised")
def humans(context: Context) -> Outcome:
    """Rank correlation of each model's uncertainty with the entropy of people's votes, side by side."""
    if context.scale == "quick" and not context.runs:
        paths = _small(context)
    else:
        paths = {"BYOL": byol_run(context), "BYOV": byov_run(context), "supervised BBB": supervised(context)}
    runs = opened(context, paths, samples=DRAWS[context.scale], **LIMITS[context.scale])
    protocol = {"draws": DRAWS[context.scale], "runs": {run.name: run.about() for run in runs}}
    part = context.kept("humans", protocol, lambda: ITEMS["humans"].make(runs))
    found = {name: HumanAgreement(**values) for name, values in part.items()}
    comparisons = []
    for name, agreement in found.items():
        comparisons.append(Comparison(f"{name}: accuracy", agreement.accuracy))
        for measure, (value, error) in agreement.spearman.items():
            told = "unsure where people are" if value > 3 * error else "not told from 0"
            comparisons.append(Comparison(f"{name}: Spearman, {MEASURES[measure]}", value, None, error, told))
    some = next(iter(found.values()))
    note = (
        f"{some.images:,} test images, {100 * some.contested:.1f} % contested (a fifth of people or more name another"
        " class). One seed; errors are bootstraps over images."
    )
    return Outcome({"protocol": protocol, "humans": part}, comparisons, humans_figure(found), note)


def _small(context: Context) -> dict[str, Path]:
    beta = f"posterior.beta_end={BASE['quick'] / 10}"  # ten times as many images as digits
    return {
        "BYOL": pretrained(context, "cifar_byol", *SMALL, *CROPS, "posterior.family=none"),
        "BYOV": pretrained(context, "cifar_byov", *SMALL, *CROPS, beta),
        "supervised BBB": supervised(context, "cifar_supervised", *SMALL, beta, "augment=crop-flip"),
    }
