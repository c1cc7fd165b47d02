"""Split conformal prediction on the posterior predictive: sets of classes, and intervals, that promise a coverage.

A score says how badly a prediction fits an answer. With the scores s_1 … s_n of calibration data, the answers whose
score is at most the k-th smallest, k = ⌈(n + 1)·coverage⌉, hold the truth with a probability of at least `coverage`,
whatever the network and the posterior: if the next input is exchangeable with these. It is an average over inputs and
calibration sets; of a shifted input it says nothing.
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
    """The ends of each number's interval, in the shape of the prediction's mean."""

    lower: Tensor
    upper: Tensor


@dataclass(frozen=True, eq=False)
class Conformal:
    """What `byov.conformal` fitted: call it with a `Prediction` that was made in the same way.

    Attributes:
        coverage: what is promised.
        threshold: the largest score that is let in; of a regression with several outputs one for each.
        score: "probability" or "aps", of a regression "absolute" or "relative" (to the predictive std).
        examples: how many the threshold was fitted on.
    """

    coverage: float
    threshold: Tensor
    score: str
    examples: int

    def __call__(self, prediction: Prediction) -> Any:
        """Return the sets, True where a class is in (N, C), or the `Interval` of a regression."""
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

    What predicts them has to be made in the same way: the same `samples`, `precision` and `temperature`. Of a
    regression each output has its own threshold, in units of the predictive std where the model has one, and the
    promise is for each output by itself.

    Args:
        model: a classifier or a regression network, plain or Bayesian.
        loader: held-out data: a loader or data set of (x, y), of mappings with "labels", or one pair (x, y).
        coverage: how often the truth is to be in the set.
        score: of classes. "probability", 1 − p of the class: the smallest sets on average; an input that is like none
            may get an empty one. "aps" (Romano et al. 2020), the sum of the probabilities down to the class: sets grow
            where the network doubts, so that hard inputs are covered as well as easy ones, and none is empty. Neither
            is randomised, so that the same input has the same set; "aps" covers more than it promises where the
            likeliest class alone does.
        samples: how many draws, or "members", as for `byov.predict`.
        generator: of the draws.
        task: as for `byov.predict`.
        output: as for `byov.predict`.
        precision: as for `byov.predict`.
        temperature: as for `byov.predict`; fitted on other data than these.

    Example:
        >>> promise = byov.conformal(model, held_out, coverage=0.9)
        >>> sets = promise(byov.predict(model, x))
    """
    if score not in get_args(Score):
        raise ValueError(f"A conformal score is 'probability' or 'aps', not {score!r}.")
    coverage = float(coverage)  # also of a tensor's or an array's number
    if not 0 < coverage < 1:
        raise ValueError(f"A coverage is above 0 and below 1, not {coverage:g}.")
    serving = Serving(model, samples, task=task, output=output, precision=precision, temperature=temperature)
    prediction, labels = predicted(serving, loader, generator)
    if prediction.task in CLASSES:
        probs, labels = rows_of(prediction, labels)
        scores = class_scores(probs, score).gather(1, labels[:, None].to(probs.device))[:, 0]
        return Conformal(coverage, quantile(scores, coverage), score, len(scores))
    if prediction.task == "multilabel":
        raise ValueError("byov.conformal is for classes that exclude each other, and for regressions.")
    mean = prediction.mean
    if labels.numel() != mean.numel() or len(labels) != len(mean):
        raise ValueError(f"The labels have shape {tuple(labels.shape)}, not {tuple(mean.shape)}.")
    relative = bool((prediction.std > 0).all())
    errors = (labels.to(mean).view_as(mean) - mean).abs() / (prediction.std if relative else 1.0)
    return Conformal(coverage, quantile(errors, coverage), "relative" if relative else "absolute", len(errors))


def class_scores(probs: Tensor, score: str) -> Tensor:
    """Compute the score of every class, in the last dimension: 1 − p, or the sum of all p down to its own."""
    if score == "probability":
        return 1 - probs
    ordered, places = probs.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered  # without the class's own: then the class that crosses the threshold is in
    return torch.zeros_like(probs).scatter(-1, places, before)


def quantile(scores: Tensor, coverage: float) -> Tensor:
    """Return the ⌈(n + 1)·coverage⌉-th smallest score (over dimension 0), or refuse where there are too few."""
    share, count = Fraction(str(coverage)), len(scores)
    rank = ceil((count + 1) * share)
    if rank > count:
        least = ceil(share / (1 - share))
        raise ValueError(f"A coverage of {coverage:g} needs at least {least} examples to calibrate on, not {count}.")
    if not bool(scores.isfinite().all()):
        raise ValueError("The scores are not finite: the predictions or the labels are not.")
    return scores.sort(0).values[rank - 1]
