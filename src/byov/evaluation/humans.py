"""Is a model uncertain about the images that people disagree on? Measured on CIFAR-10H.

CIFAR-10H holds the votes of about 50 people on each of CIFAR-10's test images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from byov.evaluation.representation import MEASURES as WITHOUT_LABELS
from byov.evaluation.resampling import spearman, tenths, with_error
from byov.metrics.functional import ood_auroc

MEASURES = {
    "entropy_at_mean": "entropy at μ",
    "entropy": "entropy, draws",
    "expected_entropy": "expected entropy",
    "mutual_information": "mutual information",
    "std": "predictive std",
    **WITHOUT_LABELS,
}
CONTESTED = 0.2
"""An image is contested if at least this share of people did not choose its most popular class."""


@dataclass(frozen=True)
class HumanAgreement:
    """The agreement of a model's uncertainty with the entropy of people's votes, in nats.

    Attributes:
        images: the number of images.
        spearman: by measure of uncertainty, its rank correlation with people's entropy, and a bootstrap error.
        auroc: by measure, how well it separates contested images from the others; None if there is only one kind.
        contested: the share of contested images.
        accuracy: the model's top-1 accuracy.
        cross_entropy: of people's votes under the model's probabilities, in nats (Peterson et al. 2019).
        curve: by measure, people's mean entropy in each tenth of the images, from the most to the least certain.
        human_entropy: people's entropy, averaged over images.
    """

    images: int
    spearman: dict[str, list[float]]
    auroc: dict[str, float | None]
    contested: float
    accuracy: float
    cross_entropy: float
    curve: dict[str, list[float]]
    human_entropy: float


def human_entropy(counts: Tensor) -> Tensor:
    """Return the entropy in nats of each image's votes (N, C)."""
    votes = counts.double()
    if votes.ndim != 2 or bool((votes < 0).any()) or bool((votes.sum(1) <= 0).any()):
        raise ValueError("Votes must be (N, C) and not negative, with at least one vote per image.")
    return torch.special.entr(votes / votes.sum(1, keepdim=True)).sum(1)


def human_agreement(
    uncertainty: Mapping[str, Tensor],
    probs: Tensor,
    labels: Tensor,
    counts: Tensor,
    bootstraps: int = 200,
    seed: int = 0,
) -> HumanAgreement:
    """Compare measures of uncertainty (N,) with people's votes (N, C) on the same images in the same order.

    Args:
        uncertainty: the measures by name; MEASURES holds the names for the figure.
        probs: the model's probabilities (N, C).
        labels: (N,).
        counts: the votes.
        bootstraps: the number of bootstraps of the images, for the errors.
        seed: the seed of the bootstraps.
    """
    if probs.shape != counts.shape or len(labels) != len(probs) or not uncertainty:
        raise ValueError(f"Probabilities {tuple(probs.shape)} and votes {tuple(counts.shape)} do not match.")
    human = human_entropy(counts).cpu()
    share = counts.double().cpu()
    share = share / share.sum(1, keepdim=True)
    contested = share.amax(1) <= 1 - CONTESTED
    both_kinds = bool(contested.any()) and not bool(contested.all())
    ranked: dict[str, list[float]] = {}
    auroc: dict[str, float | None] = {}
    curve: dict[str, list[float]] = {}
    for name, values in uncertainty.items():
        model = values.detach().double().cpu()
        if model.shape != human.shape or not bool(model.isfinite().all()):
            raise ValueError(f"The uncertainty {name!r} must be one finite number for each of {len(human)} images.")
        if float(model.std()) == 0 or float(human.std()) == 0:
            raise ValueError(
                f"The uncertainty {name!r}, or people's entropy, is constant, so it has no rank correlation."
            )
        ranked[name] = with_error(spearman, model.numpy(), human.numpy(), bootstraps, seed)
        auroc[name] = float(ood_auroc(model[~contested], model[contested])) if both_kinds else None
        curve[name] = tenths(model, human)
    p = probs.double().cpu().clamp_min(1e-12)
    return HumanAgreement(
        len(human),
        ranked,
        auroc,
        float(contested.double().mean()),
        float((probs.argmax(1).cpu() == labels.cpu()).double().mean()),
        float(-(share * p.log()).sum(1).mean()),
        curve,
        float(human.mean()),
    )
