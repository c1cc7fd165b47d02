"""Evaluate uncertainty without labels: R@1 and R-AUROC of a run, by measure of uncertainty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from byov.evaluation.representation import representation_uncertainty
from byov.evaluation.resampling import tenths, with_error
from byov.metrics.functional.uncertainty import auroc_of_errors, retrieval_errors
from byov.posterior.random import stream
from byov.runs.run import Pretrained
from byov.ssl.probe import READ

AUGMENTED = 3
"""The random stream of the augmentations; the probe uses 0 to 2."""


@dataclass(frozen=True)
class Retrieval:
    """How often the nearest neighbour has an image's class, and how well uncertainty without labels predicts it.

    Attributes:
        images: the number of images.
        r_at_1: R@1 of the embedding at μ, and its standard error.
        r_auroc: by measure of uncertainty, R-AUROC and a bootstrap error over images; None if the neighbours are all
            right or all wrong.
        curve: by measure, R@1 in each tenth of the images, from the most to the least certain.
    """

    images: int
    r_at_1: list[float]
    r_auroc: dict[str, list[float] | None]
    curve: dict[str, list[float]]


def retrieval(
    measures: Mapping[str, Tensor], embeddings: Tensor, labels: Tensor, bootstraps: int = 200, seed: int = 0
) -> Retrieval:
    """Compare measures of uncertainty (N,) with whether an image's nearest neighbour has its class.

    Args:
        measures: by name, higher is less certain, such as `Representation.measures`.
        embeddings: (N, D).
        labels: (N,).
        bootstraps: the number of bootstraps of the images, for the errors.
        seed: the seed of the bootstraps.
    """
    wrong = retrieval_errors(embeddings, labels.to(embeddings.device)).cpu()
    right = 1 - wrong
    share = float(right.mean())
    r_auroc: dict[str, list[float] | None] = {}
    curve = {}
    for name, values in measures.items():
        uncertainty = values.detach().double().cpu()
        r_auroc[name] = _auroc_and_error(uncertainty, wrong, bootstraps, seed)
        curve[name] = tenths(uncertainty, right)
    return Retrieval(len(wrong), [share, sqrt(share * (1 - share) / len(wrong))], r_auroc, curve)


def detection(
    inside: Mapping[str, Tensor], outside: Mapping[str, Tensor], bootstraps: int = 200, seed: int = 0
) -> dict[str, list[float] | None]:
    """Return the AUROC of detecting out-of-distribution images by each measure, and its bootstrap error over images."""
    found = {}
    for name in inside:
        if name in outside:
            known, foreign = (values[name].detach().double().cpu() for values in (inside, outside))
            is_foreign = torch.cat([torch.zeros(len(known)), torch.ones(len(foreign))]).double()
            found[name] = _auroc_and_error(torch.cat([known, foreign]), is_foreign, bootstraps, seed)
    return found


def run_measures(run: Pretrained, images: Tensor, augmented: bool = True) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the embeddings (N, D) at μ and all measures of uncertainty of uint8 images (N, C, H, W).

    Measures are over the draws of the run's reading (at least two) if it has a posterior, and over as many
    augmentations if `augmented` or without a posterior.
    """
    r = run.reading
    found: dict[str, Tensor] = {}
    streams = {"draws": READ} if run.posterior else {}
    streams |= {"augmentations": AUGMENTED} if augmented or not run.posterior else {}
    options: Any = {**run.probe_options, "batch_size": r.batch_size, "autocast": r.autocast}
    for over, place in streams.items():
        generator = Generator(r.device).manual_seed(stream(r.seed, place))
        made = representation_uncertainty(run.module, images, max(2, r.samples), generator, over=over, **options)
        found |= made.measures
    return made.embeddings, found


def label_free_scores(run: Pretrained) -> dict[str, Any]:
    """Return R@1, and R-AUROC by measure, of a pretraining run, each with its error, for a results file.

    Measures are over draws, or over augmentations without a posterior.
    """
    embeddings, measures = run_measures(run, run.images.images, augmented=False)
    found = asdict(retrieval(measures, embeddings, run.labels, seed=run.reading.seed))
    return {name: found[name] for name in ("images", "r_at_1", "r_auroc")}


def _auroc_and_error(uncertainty: Tensor, wrong: Tensor, bootstraps: int, seed: int) -> list[float] | None:
    """Return an AUROC with its bootstrap error; None if there is only one class."""
    if wrong.min() == wrong.max():
        return None
    return with_error(_auroc, uncertainty.numpy(), wrong.numpy(), bootstraps, seed)


def _auroc(uncertainty: np.ndarray, wrong: np.ndarray) -> float:
    if wrong.min() == wrong.max():  # of a resample
        return float("nan")
    return float(auroc_of_errors(torch.from_numpy(uncertainty), torch.from_numpy(wrong)))
