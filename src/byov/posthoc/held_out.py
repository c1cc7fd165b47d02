"""The prior's precision under which a posterior of the last layer predicts held-out data best."""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi, sqrt

from torch import Generator, Tensor
from torch.nn.functional import binary_cross_entropy

from byov.posterior.module import BayesianModule
from byov.posthoc.curvature import Likelihood
from byov.posthoc.evidence import RANGE
from byov.prediction.outputs import Task
from byov.prediction.predict import predict

DRAWS, STEP = 128, sqrt(10)
TASKS: dict[Likelihood, Task] = {"softmax": "classification", "bernoulli": "multilabel", "gaussian": "regression"}


def predictive_loss(head: BayesianModule, x: Tensor, y: Tensor, likelihood: Likelihood, noise: float | None) -> float:
    """Compute the average negative log-likelihood of labels under the average of draws, the same ones at every call."""
    found = predict(head, x, DRAWS, generator=Generator(x.device).manual_seed(0), task=TASKS[likelihood])
    mean = found.mean.double()
    if likelihood == "softmax":
        rows = y.flatten() >= 0
        of_label = mean[rows].gather(1, y.flatten().long()[rows, None])
        return -float(of_label.clamp_min(1e-300).log().mean())
    y = y.reshape(mean.shape).double()
    if likelihood == "bernoulli":
        return float(binary_cross_entropy(mean.clamp(0, 1), y))
    variance = found.std.double().square() + (noise or 1.0) ** 2
    return float(0.5 * ((y - mean).square() / variance + variance.log() + log(2 * pi)).mean())


def climb(loss: Callable[[float], float], start: float) -> float:
    """Return the precision, in half decades from `start`, from which a further one in either direction is worse."""
    best, least = start, loss(start)
    for step in (STEP, 1 / STEP):
        while RANGE[0] < best * step < RANGE[1] and (now := loss(best * step)) < least:
            best, least = best * step, now
    return best
