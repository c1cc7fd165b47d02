"""The loss for the labels of a user's loader, and the scores of predictions of these labels."""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from byov.metrics import functional as scores
from byov.posterior import BayesianModule
from byov.posthoc.labelled import IGNORED, align_labels, class_numbers, task_of
from byov.prediction.inputs import call, ready
from byov.prediction.outputs import CLASSES, Output, OutputSpec, Task, class_dim
from byov.prediction.result import Prediction

Loss = Callable[[Tensor, Tensor], Tensor]


class Criterion:
    """The loss of a task, which is given or inferred from unambiguous outputs and labels, or the user's own loss.

    It is cross-entropy for classification tasks, the sum of binary cross-entropies for "multilabel", and the Gaussian
    negative log-likelihood for "gaussian" and "regression"; the latter with the noise 1/τ: half the squared error.
    """

    def __init__(
        self,
        model: nn.Module,
        inner: nn.Module,
        posterior: BayesianModule | None,
        task: Task | None,
        output: Output | None,
        loss: Loss | None,
        tau: float,
    ) -> None:
        net = inner if posterior is not inner or posterior is None else posterior.net
        self.model, self.net, self.posterior, self.loss, self.tau = model, net, posterior, loss, tau
        self.reading = OutputSpec(task, output, net)

    @property
    def name(self) -> str:
        """Return the name of what is minimised."""
        return "its own loss" if self.loss is not None else str(self.reading.task)

    def __call__(self, x: Any, y: Tensor) -> Tensor:
        """Return the mean loss of a batch under the weights of one call."""
        outputs = call(self.model, ready(x, self.model), self.reading.tensor)
        if self.loss is not None:
            return self.loss(outputs, y.to(outputs.device)).mean()
        if self.reading.task is None:
            self.reading.task = task_of(outputs, y)
        outputs, y = self.reading.shaped(outputs[None])[0], align_labels(y, self.reading)
        return negative_log_likelihood(self.reading.task, outputs, y, self.tau)


def negative_log_likelihood(task: Task | None, outputs: Tensor, labels: Tensor, tau: float = 1.0) -> Tensor:
    """Compute the mean −log p(labels) over a batch, skipping class labels that are `IGNORED`."""
    if task in CLASSES:
        dim = class_dim(task, outputs, draws=0)
        check_classes(labels, outputs.shape[dim])
        outputs, labels = outputs.movedim(dim, -1).flatten(0, -2).float(), labels.flatten().long().to(outputs.device)
        logits = outputs.clamp_min(1e-12).log() if task == "probabilities" else outputs
        return F.cross_entropy(logits, labels, ignore_index=IGNORED)
    mean, log_var = outputs.chunk(2, 1) if task == "gaussian" else (outputs, None)
    if labels.numel() != mean.numel():
        raise ValueError(f"Outputs {tuple(mean.shape)} and labels {tuple(labels.shape)} must have the same size.")
    labels = labels.to(mean).reshape(mean.shape)
    if task == "multilabel":
        each = F.binary_cross_entropy_with_logits(mean, labels, reduction="none")
    elif log_var is None:
        each = 0.5 * (tau * (mean - labels).square() + log(2 * pi / tau))
    else:
        each = 0.5 * ((mean - labels).square() * (-log_var).exp() + log_var + log(2 * pi))
    return each.flatten(1).sum(1).mean() if each.ndim > 1 else each.mean()


def check_classes(labels: Tensor, classes: int) -> None:
    """Raise on labels that are not classes before they reach a GPU, where they would kill the process."""
    labels = class_numbers(labels, classes)
    if bool(((labels < 0) & (labels != IGNORED)).any()):
        least = int(labels[labels != IGNORED].min())
        raise ValueError(f"The label {least} is neither a class nor {IGNORED}, which is ignored.")


def scored(prediction: Prediction, labels: Tensor) -> dict[str, float]:
    """Score a prediction: first its negative log-likelihood, then the usual metrics of its task."""
    mean, task = prediction.mean, prediction.task
    if task in CLASSES:
        mean = mean.movedim(class_dim(task, mean, draws=0), -1).flatten(0, -2)
        labels = labels.flatten().long()
        mean, labels = mean[labels != IGNORED], labels[labels != IGNORED]
        check_classes(labels, mean.shape[1])
        nll, accuracy, ece = scores.nll, scores.accuracy, scores.calibration_error
        return {
            "nll": float(nll(mean, labels)),
            "accuracy": float(accuracy(mean, labels)),
            "ece": float(ece(mean, labels)),
        }
    labels = labels.to(mean).reshape(mean.shape)
    if task == "multilabel":
        each = F.binary_cross_entropy(mean.clamp(1e-7, 1 - 1e-7), labels, reduction="none")
        right = ((mean > 0.5) == (labels > 0.5)).float()
        return {"nll": float(each.sum(1).mean()), "accuracy": float(right.mean())}
    variance = prediction.std.square()
    each = 0.5 * ((mean - labels).square() / variance + variance.log() + log(2 * pi))
    rmse = (mean - labels).square().mean().sqrt()
    return {"nll": float(each.flatten(1).sum(1).mean() if each.ndim > 1 else each.mean()), "rmse": float(rmse)}
