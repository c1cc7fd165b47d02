"""A temperature for class probabilities, also for averages over draws: p ∝ p̄^(1/T).

An average of many draws is more often right than its confidence says, even if the head was fitted to averages of as
many draws. One number, chosen by likelihood, corrects this if it is the same for all images; it also removes a part of
the uncertainty that draws add under shift. For a network without a posterior it is the usual temperature of the logits,
because p̄ is then their softmax. Vector scaling has a factor and an offset for each class, p ∝ exp(w ∘ log p̄ + b).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Generator, Tensor, nn

from byov.posthoc.labelled import align_labels, class_numbers, labelled
from byov.prediction.inputs import posterior_of
from byov.prediction.outputs import CLASSES, Output, Task, class_dim
from byov.prediction.predict import Serving
from byov.prediction.result import Prediction, entropy

RANGE = 4.0
"""T lies between 1/4 and 4: a few images that are all right, or all wrong, would give 0 or infinity."""
RIDGE = 1e-3
"""Factor of half the squares of w − 1/T and b, added to the average loss: classes without examples stay at T."""

Kind = Literal["scalar", "vector"]


@dataclass(frozen=True, eq=False)
class Temperature:
    """The result of `byov.temperature`: pass it to `byov.predict(…, temperature=…)`, or call it with a `Prediction`.

    Attributes:
        value: T; below 1 the probabilities become sharper, above 1 flatter.
        scale: w (C,) of vector scaling; else None.
        offset: b (C,) of vector scaling; else None.
    """

    value: float
    scale: Tensor | None = None
    offset: Tensor | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.value, int | float) and 0 < self.value < float("inf")):
            raise ValueError(f"A temperature is above 0, not {self.value!r}.")

    def probabilities(self, probs: Tensor, dim: int = -1) -> Tensor:
        """Return the probabilities at this temperature."""
        if self.scale is None or self.offset is None:
            return (_logs(probs) / self.value).softmax(dim)
        if probs.shape[dim] != len(self.scale):
            raise ValueError(f"The vector scaling is for {len(self.scale)} classes, not for {probs.shape[dim]}.")
        scaled = _logs(probs.movedim(dim, -1)) * self.scale.to(probs) + self.offset.to(probs)
        return scaled.softmax(-1).movedim(-1, dim)

    def __call__(self, prediction: Prediction) -> Prediction:
        """Return a prediction with its mean at this temperature.

        The mutual information does not change, because the draws disagree as before; the rest of the entropy is
        aleatoric.
        """
        if prediction.task not in CLASSES or prediction.mutual_information is None:
            raise ValueError(f"A temperature is for class probabilities, not for a {prediction.task}.")
        dim = class_dim(prediction.task, prediction.mean, draws=0)
        mean = self.probabilities(prediction.mean, dim)
        total = entropy(mean, dim)
        epistemic = torch.minimum(prediction.mutual_information, total)
        return replace(
            prediction, mean=mean, entropy=total, expected_entropy=total - epistemic, mutual_information=epistemic
        )


def temperature(
    model: nn.Module,
    loader: Any,
    kind: Kind = "scalar",
    samples: int | Literal["members"] = 100,
    generator: Generator | None = None,
    *,
    task: Task | None = None,
    output: Output | None = None,
) -> Temperature:
    """Fit a temperature to a classifier on data that it was not trained on.

    A plain network is used as it is, a posterior under draws: fit with the same `samples` that will be used for
    prediction. To fit at the posterior mean, pass `model.point()`.

    Args:
        model: any classifier, plain or Bayesian.
        loader: held-out data: a loader or data set of (x, y), of mappings with "labels", or one pair (x, y).
        kind: "scalar", one T for all classes; "vector", a factor and an offset per class, which needs dozens of
            examples of each class.
        samples: the number of draws, or "members", as for `byov.predict`.
        generator: for the draws.
        task: as for `byov.predict`.
        output: as for `byov.predict`.

    Example:
        >>> warm = byov.temperature(model, held_out)
        >>> byov.predict(model, x, temperature=warm).mean
    """
    if kind not in get_args(Kind):
        raise ValueError(f"A temperature is 'scalar' or 'vector', not {kind!r}.")
    prediction, labels = predicted(Serving(model, samples, task=task, output=output), loader, generator)
    if prediction.task not in CLASSES:
        raise ValueError(f"A temperature is for class probabilities, not for a {prediction.task}.")
    probs, labels = rows_of(prediction, labels)
    value = fit_temperature(probs, labels)
    if not 1.001 / RANGE < value < RANGE / 1.001:
        side = "sharper" if value < 1 else "flatter"
        warnings.warn(
            f"The temperature is at the end of its range, {value:.3g}: these {len(labels)} labels ask for even {side}"
            " probabilities, as happens with few examples that are all right or all wrong.",
            stacklevel=2,
        )
    return Temperature(value) if kind == "scalar" else Temperature(value, *fit_vector(probs, labels, value))


def predicted(serving: Serving, loader: Any, generator: Generator | None) -> tuple[Prediction, Tensor]:
    """Predict labelled data, under the same draws for every batch."""
    posterior = posterior_of(serving.model)
    called = posterior.net if posterior is not None and posterior is serving.model else serving.model
    labels: list[Tensor] = []

    def inputs() -> Iterator[Any]:
        for x, y in labelled(loader, called):
            labels.append(y.cpu())
            yield x

    prediction = serving(inputs(), generator, progress=False)
    return prediction, align_labels(torch.cat(labels), serving.reading)


def rows_of(prediction: Prediction, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return class probabilities as rows (N, C), with their labels (N,); rows with negative labels are left out."""
    probs = prediction.mean.movedim(class_dim(prediction.task, prediction.mean, draws=0), -1)
    labels = class_numbers(labels, probs.shape[-1])
    labels = labels[..., 0] if labels.shape == (*probs.shape[:-1], 1) else labels
    if labels.shape != probs.shape[:-1]:
        raise ValueError(f"The labels have shape {tuple(labels.shape)}, not {tuple(probs.shape[:-1])}.")
    kept = labels.flatten() >= 0
    return probs.flatten(0, -2)[kept], labels.flatten()[kept]


def fit_temperature(probs: Tensor, labels: Tensor) -> float:
    """Find the T under which the labels (N,) are most likely, given probabilities (N, C).

    The negative log-likelihood is convex in 1/T; its slope is E[Σ p log p̄] − E[log p̄_y], which changes sign once.
    """
    if probs.ndim != 2 or labels.shape != probs.shape[:1] or not len(labels):
        raise ValueError(f"A temperature needs probabilities (N, C) and labels (N,), not {tuple(probs.shape)}.")
    logs = _logs(probs).double()  # as in `Temperature`: zeros become the smallest number of the dtype
    truth = logs.gather(1, labels.to(logs.device, torch.int64)[:, None]).mean()
    low, high = 1 / RANGE, RANGE
    for _ in range(50):
        middle = (low * high) ** 0.5
        slope = ((middle * logs).softmax(1) * logs).sum(1).mean() - truth
        low, high = (middle, high) if slope < 0 else (low, middle)
    return 1 / middle


def fit_vector(probs: Tensor, labels: Tensor, start: float) -> tuple[Tensor, Tensor]:
    """Find w and b (C,) under which the labels are most likely; they start at 1/T and 0, with a ridge towards these."""
    logs, labels = _logs(probs).double(), labels.to(probs.device, torch.int64)
    parameters = torch.zeros(2, probs.shape[1], dtype=torch.float64, device=probs.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([parameters], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        scaled = logs * (1 / start + parameters[0]) + parameters[1]
        loss = nn.functional.cross_entropy(scaled, labels) + 0.5 * RIDGE * parameters.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    scale, offset = parameters.detach()
    return (1 / start + scale).to(probs.dtype), offset.to(probs.dtype)


def _logs(probs: Tensor) -> Tensor:
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
