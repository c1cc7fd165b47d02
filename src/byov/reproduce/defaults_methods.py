"""The methods of `byov reproduce defaults`: how each is trained and what it predicts, the same for every set.

All have 600 steps of Adam at 3e-3 with a cosine to zero, batches of 64, and see the same rows; what has a KL has β
times it. Nothing here was chosen on a test set: results/defaults/README.md has what was tried, on held-out rows.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from byov.metrics import functional as metrics
from byov.posterior import (
    ECMP,
    EMP,
    BayesianModule,
    Dropout,
    Gaussian,
    bayesianize,
    elbo,
    norm_layers,
    output_layer,
    parameter_groups,
)
from byov.posterior.select import Rules
from byov.prediction import predict
from byov.reproduce.defaults_sets import Task
from byov.ssl.temperature import fit_temperature, tempered

STEPS, BATCH, LR, DRAWS, MEMBERS = 600, 64, 3e-3, 30, 5
LEVELS = torch.arange(1, 20) / 20
"""Of the quantiles at which a regression's calibration is read."""


def _on_both(family: Any) -> Rules:
    return {norm_layers: family, output_layer: family}


RULES: dict[str, Rules | str | None] = {
    "plain": None,
    "dropout": Dropout(0.05),
    "Gaussian": Gaussian(relative=0.05),
    "EMP": _on_both(EMP(5)),
    "ECMP": _on_both(ECMP(5)),
    "default": "scratch",
}
"""What is trained. "plain + temperature" and the explicit ensemble are read from plain networks."""
METHODS = ("plain", "plain + temperature", "dropout", "ensemble of 5", "Gaussian", "EMP", "ECMP", "default")


class Fitted(nn.Module):
    """A trained network with the precision of a regression's noise."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.log_precision = net, nn.Parameter(torch.zeros(()))

    def loss(self, x: Tensor, y: Tensor, regression: bool) -> Tensor:
        out = self.net(x)
        if not regression:
            return cross_entropy(out, y)
        squares = self.log_precision.exp() * (out - y).square() - self.log_precision + math.log(2 * math.pi)
        return 0.5 * squares.mean()

    @torch.no_grad()
    def draws(self, x: Tensor, regression: bool) -> Tensor:
        """Return probabilities (S, N, C), or a regression's means (S, N, 1)."""
        self.eval()
        if not isinstance(self.net, BayesianModule):
            out = self.net(x)[None]
            return out if regression else out.softmax(-1)
        generator = Generator().manual_seed(0)
        found = predict(
            self.net, x, DRAWS, generator=generator, keep=True, task="regression" if regression else None,
            precision=1.0 if regression else None,
        ).draws
        assert found is not None
        return found


def fit(method: str, task: Task, seed: int, beta: float) -> tuple[Fitted, float]:
    """Train a method with a seed; return it and the milliseconds of a step."""
    torch.manual_seed(seed)
    net, rules = task.network(), RULES[method]
    fitted = Fitted(net if rules is None else bayesianize(net, rules))
    optimizer = torch.optim.Adam(parameter_groups(fitted, LR, STEPS))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    began = monotonic()
    for _ in range(STEPS):
        i = torch.randint(len(task.x), (BATCH,))
        loss = fitted.loss(task.x[i], task.y[i], task.regression)
        if rules is not None:
            loss = elbo(loss, fitted, n=len(task.x), beta=beta)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return fitted, 1000 * (monotonic() - began) / STEPS
