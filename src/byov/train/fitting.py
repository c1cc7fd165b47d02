"""The epochs of `byov.fit`, with their validation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from math import isfinite
from time import monotonic
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from byov.posterior import beta, elbo
from byov.posthoc.labelled import align_labels, labelled
from byov.posthoc.swag import SWAG
from byov.prediction import Serving
from byov.prediction.inputs import device_of
from byov.train import Diverged
from byov.train.history import History
from byov.train.labelled_loss import Criterion, scored
from byov.train.schedules import warmup_cosine

Precision = Literal["auto", "32-true", "bf16-mixed"]
WARMUP = 0.05
"""Fraction of the steps used for the warm-up."""


@dataclass
class Fitting:
    """The state of a training by `byov.fit`."""

    model: nn.Module
    criterion: Criterion
    optimizer: Optimizer
    history: History
    steps: int
    beta_end: float
    precision: Precision
    swag: SWAG | None = None
    """Follows the model, and is validated and kept in its place."""
    step: int = 0
    advance: Callable[[str], None] = lambda text: None

    def run(self, loader: Any, validation: Any, epochs: int, samples: int, patience: int | None) -> None:
        """Train until the end, or until validation has not improved for `patience` epochs; keep the best weights."""
        kept: dict[str, Tensor] = {}
        learner = self.model if self.swag is None else self.swag
        for epoch in range(1, epochs + 1):
            started, row = monotonic(), {"epoch": epoch, **self.train(loader)}
            row |= {} if validation is None else self.validate(validation, samples)
            self.history.add({**row, "seconds": monotonic() - started})
            if self.history.best == epoch and validation is not None:
                kept = {name: value.detach().clone() for name, value in learner.state_dict().items()}
            if validation is not None and patience is not None and epoch - self.history.best >= patience:
                break
        if kept:
            learner.load_state_dict(kept)
        self.model.eval()

    def train(self, loader: Any) -> dict[str, float]:
        """Train for one epoch; return the mean loss and the last penalty."""
        self.model.train()
        whole = loss = torch.zeros(())
        total, count = torch.zeros(()), 0
        for x, y in labelled(loader, self.criterion.net):
            end = 0.0 if self.swag is None else 1.0  # SWAG needs weights that keep moving
            rate = warmup_cosine(self.step, self.steps, round(WARMUP * self.steps), 1.0, end)
            for group in self.optimizer.param_groups:
                group["lr"] = group["initial"] * rate
            with self._cast():
                loss = self.criterion(x, y)
            weight = beta(self.step, self.steps, self.beta_end)
            whole = elbo(loss, self.model, self.history.n, weight) if self.criterion.posterior is not None else loss
            self.history.task = self.criterion.name
            self.optimizer.zero_grad()
            whole.backward()
            self.optimizer.step()
            if self.swag is not None:
                self.swag.update()
            self.step, count, total = self.step + 1, count + 1, total + loss.detach().cpu()
            self.advance(f"epoch {len(self.history.rows) + 1} loss {float(total) / count:.4g}")
        if not isfinite(last := float(whole.detach())):
            raise Diverged(f"The loss is {last} after {self.step} steps: try a lower lr.")
        return {"loss": float(total) / count, "kl": last - float(loss.detach())}

    @torch.no_grad()
    def validate(self, loader: Any, samples: int) -> dict[str, float]:
        """Score the posterior predictive or, with a user's own loss, compute this loss at the mean weights."""
        model = self.model if self.swag is None else self.swag.posterior()
        model.eval()
        if self.criterion.loss is not None:
            criterion = copy(self.criterion)
            criterion.model = model
            losses = [float(criterion(x, y)) for x, y in labelled(loader, self.criterion.net)]
            return {"nll": sum(losses) / len(losses)}
        labels: list[Tensor] = []

        def inputs() -> Iterator[Any]:
            for x, y in labelled(loader, self.criterion.net):
                labels.append(y.cpu())
                yield x

        reading, generator = self.criterion.reading, Generator(device_of(self.model)).manual_seed(0)  # the same draws
        tau = self.criterion.tau if reading.task == "regression" else None
        serving = Serving(model, samples, task=reading.task, output=reading.output, precision=tau)
        with self._cast():
            prediction = serving(inputs(), generator, progress=False)
        return scored(prediction, align_labels(torch.cat(labels), serving.reading))

    def _cast(self) -> Any:
        kind = device_of(self.model).type
        cast = self.precision == "bf16-mixed" or (self.precision == "auto" and kind == "cuda")
        return torch.autocast(kind, torch.bfloat16) if cast else nullcontext()
