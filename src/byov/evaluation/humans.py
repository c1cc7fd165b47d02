"""Is a model unsure of the images that people disagree on? Read on CIFAR-10H.

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
"""An image is contested where at least this share of people did not choose the most chosen class."""


@dataclass(frozen=True)
class HumanAgreement:
    """How a model's uncertainty goes with the entropy of people's votes, in nats.

    Attributes:
        images: how many.
        spearman: by measure of uncertainty, its rank correlation with the people's entropy, and a bootstrap error.
        auroc: by measure, how well it tells contested images from the others; None where all are alike.
        contested: the share of contested images.
        accuracy: the share of images where the model's first choice is the label.
        cross_entropy: of the people's distribution under the model's, in nats (Peterson et al. 2019).
        curve: by measure, the mean human entropy in each tenth of the images, from the surest to the least sure.
        human_entropy: the mean over images.
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
        raise ValueError("Votes are (N, C), at least one for every image and none below 0.")
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
        uncertainty: by name; those in MEASURES have a name in the figure.
        probs: the model's probabilities (N, C).
        labels: (N,).
        counts: the votes.
        bootstraps: of the images, for the errors.
        seed: of the bootstraps.
    """
    if probs.shape != counts.shape or len(labels) != len(probs) or not uncertainty:
        raise ValueError(
            f"Probabilities {tuple(probs.shape)} and votes {tuple(counts.shape)} are not of the same images."
        )
    human = human_entropy(counts).cpu()
    share = counts.double().cpu() / counts.double().cpu().sum(1, keepdim=True)
    contested = share.amax(1) <= 1 - CONTESTED
    ranked: dict[str, list[float]] = {}
    auroc: dict[str, float | None] = {}
    curve: dict[str, list[float]] = {}
    for name, values in uncertainty.items():
        model = values.detach().double().cpu()
        if model.shape != human.shape or not bool(model.isfinite().all()):
            raise ValueError(f"The uncertainty {name!r} is not one finite number for each of {len(human)} images.")
        if float(model.std()) == 0 or float(human.std()) == 0:
            raise ValueError(f"The uncertainty {name!r}, or people's, is the same for every image: there is no rank.")
        ranked[name] = with_error(spearman, model.numpy(), human.numpy(), bootstraps, seed)
        two = bool(contested.any()) and not bool(contested.all())
        auroc[name] = float(ood_auroc(model[~contested], model[contested])) if two else None
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
