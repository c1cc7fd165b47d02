"""Split conformal prediction on the posterior predictive: sets of classes, and intervals, with a promised coverage.

A score measures how badly a prediction fits an answer. With the scores s_1 … s_n of calibration data, the answers whose
score is at most the k-th smallest, k = ⌈(n + 1)·coverage⌉, contain the truth with a probability of at least `coverage`,
whatever the network and the posterior, if the next input is exchangeable with the calibration data. The probability is
an average over inputs and calibration sets; it does not hold for a shifted input.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Generator, Tensor, nn

from byov.posthoc.temperature import Temperature, predicted, rows_of
from byov.prediction.outputs import CLASSES, Output, Task, class_dim
from byov.prediction.predict import Serving
from byov.prediction.result import Prediction

Score = Literal["probability", "aps"]


class Interval(NamedTuple):
    """The bounds of the interval for each number, in the shape of the prediction's mean."""

    lower: Tensor
    upper: Tensor


@dataclass(frozen=True, eq=False)
class Conformal:
    """The result of `byov.conformal`: call it with a `Prediction` made in the same way.

    Attributes:
        coverage: the promised coverage.
        threshold: the largest score that is included; one for each output of a regression.
        score: "probability" or "aps"; for a regression "absolute" or "relative" (to the predictive std).
        examples: the number of examples that the threshold was fitted on.
    """

    coverage: float
    threshold: Tensor
    score: str
    examples: int

    def __call__(self, prediction: Prediction) -> Any:
        """Return the sets (N, C), True for the classes included, or the `Interval` of a regression."""
        classes = prediction.task in CLASSES
        if classes != (self.score in get_args(Score)):
            raise ValueError(f"This was fitted with the score {self.score!r}, which a {prediction.task} does not have.")
        mean = prediction.mean
        if classes:
            dim = class_dim(prediction.task, mean, draws=0)
            scores = class_scores(mean.movedim(dim, -1), self.score).movedim(-1, dim)
            return scores <= self.threshold.to(scores)
        reach = self.threshold.to(mean) * (prediction.std if self.score == "relative" else torch.ones_like(mean))
        return Interval(mean - reach, mean + reach)


def conformal(
    model: nn.Module,
    loader: Any,
    coverage: float = 0.9,
    score: Score = "probability",
    samples: int | Literal["members"] = 100,
    generator: Generator | None = None,
    *,
    task: Task | None = None,
    output: Output | None = None,
    precision: float | None = None,
    temperature: Temperature | None = None,
) -> Conformal:
    """Calibrate sets or intervals with a promised coverage on data that the model has not seen.

    Later predictions must be made in the same way, with the same `samples`, `precision` and `temperature`. In a
    regression each output has its own threshold, in units of the predictive std if the model has one, and the promise
    holds for each output separately.

    Args:
        model: a classifier or a regression network, plain or Bayesian.
        loader: held-out data: a loader or data set of (x, y), of mappings with "labels", or one pair (x, y).
        coverage: how often the set should contain the truth.
        score: the score for classes. "probability", 1 − p of the class: the smallest sets on average; an input unlike
            any class may get an empty set. "aps" (Romano et al. 2020), the sum of the probabilities of all likelier
            classes: sets grow when the network is unsure, so that hard inputs are covered as well as easy ones, and
            none is empty. Neither is randomised, so the same input always has the same set; "aps" covers more than
            promised where the likeliest class alone does.
        samples: the number of draws, or "members", as for `byov.predict`.
        generator: for the draws.
        task: as for `byov.predict`.
        output: as for `byov.predict`.
        precision: as for `byov.predict`.
        temperature: as for `byov.predict`; fitted on different data.

    Example:
        >>> promise = byov.conformal(model, held_out, coverage=0.9)
        >>> sets = promise(byov.predict(model, x))
    """
    if score not in get_args(Score):
        raise ValueError(f"A conformal score is 'probability' or 'aps', not {score!r}.")
    coverage = float(coverage)  # also from a tensor or an array
    if not 0 < coverage < 1:
        raise ValueError(f"A coverage is above 0 and below 1, not {coverage:g}.")
    serving = Serving(model, samples, task=task, output=output, precision=precision, temperature=temperature)
    prediction, labels = predicted(serving, loader, generator)
    if prediction.task in CLASSES:
        probs, labels = rows_of(prediction, labels)
        scores = class_scores(probs, score).gather(1, labels[:, None].to(probs.device))[:, 0]
        return Conformal(coverage, quantile(scores, coverage), score, len(scores))
    if prediction.task == "multilabel":
        raise ValueError("byov.conformal is for mutually exclusive classes and for regressions.")
    mean = prediction.mean
    if labels.numel() != mean.numel() or len(labels) != len(mean):
        raise ValueError(f"The labels have shape {tuple(labels.shape)}, not {tuple(mean.shape)}.")
    relative = bool((prediction.std > 0).all())
    errors = (labels.to(mean).view_as(mean) - mean).abs() / (prediction.std if relative else 1.0)
    return Conformal(coverage, quantile(errors, coverage), "relative" if relative else "absolute", len(errors))


def class_scores(probs: Tensor, score: str) -> Tensor:
    """Compute the score of every class, in the last dimension: 1 − p, or the sum of all larger p."""
    if score == "probability":
        return 1 - probs
    ordered, places = probs.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered  # without its own p: the class that crosses the threshold is included
    return torch.zeros_like(probs).scatter(-1, places, before)


def quantile(scores: Tensor, coverage: float) -> Tensor:
    """Return the ⌈(n + 1)·coverage⌉-th smallest score (over dimension 0); raise if there are too few scores."""
    share, count = Fraction(str(coverage)), len(scores)
    rank = ceil((count + 1) * share)
    if rank > count:
        least = ceil(share / (1 - share))
        raise ValueError(f"A coverage of {coverage:g} needs at least {least} examples to calibrate on, not {count}.")
    if not bool(scores.isfinite().all()):
        raise ValueError("The scores are not finite: the predictions or the labels are not.")
    return scores.sort(0).values[rank - 1]
