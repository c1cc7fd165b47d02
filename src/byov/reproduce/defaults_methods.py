"""The methods of `byov reproduce defaults`: how each is trained and predicts, the same for every set.

All methods are trained on the same rows with 600 steps of Adam at 3e-3, as in README's loop, and batches of 64; a
pretrained network is fine-tuned by `FINE_TUNED`. A KL term is weighted by `beta`. Nothing was chosen on a test set:
results/defaults/README.md lists what was tried on held-out rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy

from byov.posterior import (
    ECMP,
    EMP,
    BayesianModule,
    Dropout,
    Gaussian,
    bayesianize,
    elbo,
    log_var_rate,
    norm_layers,
    output_layer,
    parameter_groups,
)
from byov.posterior.mixture import SPREAD
from byov.posterior.select import Rules
from byov.posthoc.swag import SCALE, SWAG
from byov.posthoc.temperature import Temperature, fit_temperature
from byov.prediction import predict
from byov.reproduce.defaults_scores import Scores, auroc, averaged, classified, regressed, uncertainties
from byov.reproduce.defaults_sets import Task

STEPS, BATCH, LR, BETA, DRAWS, MEMBERS = 600, 64, 3e-3, 1e-3, 30, 5
FINE_TUNED = {"batch": 32, "lr": 1e-3, "draws": 10}
"""What differs for a pretrained network: a usual rate for fine-tuning; and its passes are slow on a CPU."""


def settings(pretrained: bool = False) -> dict[str, Any]:
    """Return the settings that every reading depends on."""
    usual = {"steps": STEPS, "batch": BATCH, "lr": LR, "beta": BETA, "draws": DRAWS, "spread": SPREAD}
    return usual | FINE_TUNED if pretrained else usual


def _on_both(family: Any) -> Rules:
    return {norm_layers: family, output_layer: family}


RULES: dict[str, Rules] = {
    "dropout": Dropout(0.05),
    "Gaussian": Gaussian(relative=0.05),
    "Gaussian output": {output_layer: Gaussian(relative=0.05)},
    "EMP": _on_both(EMP(5)),
    "ECMP": _on_both(ECMP(5)),
}
"""The methods trained with a posterior. SWAG follows the training of a plain network: "plain", "plain + temperature",
"plain, averaged" (SWAG without its σ), "SWAG" and the ensemble all use these trainings."""
SWAG_SCALES = {"plain, averaged": 0.0, "SWAG": SCALE}
"""The `scale` of SWAG for each method."""
METHODS = (
    "plain",
    "plain + temperature",
    "plain, averaged",
    "SWAG",
    "dropout",
    "ensemble of 5",
    "Gaussian",
    "Gaussian output",
    "EMP",
    "ECMP",
)


class Fitted(nn.Module):
    """A network with the noise precision of a regression."""

    def __init__(self, net: nn.Module, samples: int | None = None) -> None:
        super().__init__()
        self.net, self.log_precision = net, nn.Parameter(torch.zeros(()))
        self.samples = DRAWS if samples is None else samples

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
            self.net,
            x,
            self.samples,
            generator=generator,
            keep=True,
            task="regression" if regression else None,
            precision=1.0 if regression else None,
        ).draws
        assert found is not None
        return found


def beta(fitted: Fitted, n: int) -> float:
    """Return the β of all methods here: BETA, or 0.02·n/P for P random weights if that is less.

    `byov.posterior.usual_beta`, which came later, gives the same from twenty weights per example on.
    """
    weights = sum(factor.layout.numel for factor in fitted.net.factors)  # type: ignore[union-attr]
    return min(BETA, 0.02 * n / weights)


def fit(method: str, task: Task, seed: int) -> Fitted:
    """Train a method with a seed; see `trainer`."""
    fitted, step = trainer(method, task, seed)
    for _ in range(STEPS):
        step()
    return fitted


def trainer(method: str, task: Task, seed: int) -> tuple[Fitted, Callable[[], None]]:
    """Return an untrained method and a function that takes one step; "SWAG" is a plain network followed by SWAG."""
    torch.manual_seed(seed)
    net, rules = task.network(), RULES.get(method)
    swag, own = SWAG(net) if method == "SWAG" else None, settings(task.pretrained)
    fitted = Fitted((swag or net) if rules is None else bayesianize(net, rules), own["draws"])
    noise = {"params": [fitted.log_precision], "lr": log_var_rate(STEPS)}  # it must move as far as a log-variance
    optimizer = torch.optim.Adam([*parameter_groups(fitted.net, own["lr"], STEPS), noise])

    def step() -> None:
        fitted.train()
        i = torch.randint(len(task.x), (own["batch"],))
        loss = fitted.loss(task.x[i], task.y[i], task.regression)
        if rules is not None:
            loss = elbo(loss, fitted, n=len(task.x), beta=beta(fitted, len(task.x)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if swag is not None:
            swag.update()

    return fitted, step


def followed(fitted: Fitted) -> dict[str, Fitted]:
    """Return the SWAG posteriors of `SWAG_SCALES`, and the network that they followed as "plain"."""
    swag, found = fitted.net, {}
    assert isinstance(swag, SWAG)
    for method, swag.scale in SWAG_SCALES.items():
        found[method] = Fitted(swag.posterior(), fitted.samples)
    found["plain"] = Fitted(swag.net)
    for each in found.values():
        each.log_precision = fitted.log_precision
    return found


@dataclass(frozen=True, eq=False)
class Read:
    """Predictions of a method for each part of a task: draws (S, N, …), and the noise precision of a regression."""

    parts: dict[str, list[Tensor]]
    precision: float

    @classmethod
    def of(cls, fitted: Fitted, task: Task) -> Read:
        inputs = {
            "held": [task.held_x],
            "held_shifted": task.shifted(task.held_x),
            "test": [task.test_x],
            "shifted": task.shifted(task.test_x),
            "other": [task.other],
        }
        parts = {name: [fitted.draws(x, task.regression) for x in each] for name, each in inputs.items()}
        return cls(parts, fitted.log_precision.exp().item())

    @classmethod
    def ensemble(cls, members: Sequence[Read]) -> Read:
        """Treat several networks as draws of one; the noise variance is their mean."""
        parts = {
            name: [torch.cat([member.parts[name][i] for member in members]) for i in range(len(each))]
            for name, each in members[0].parts.items()
        }
        return cls(parts, len(members) / sum(1 / member.precision for member in members))

    def tempered(self, task: Task) -> Read:
        """Fit a temperature on the held-out rows, or the noise of a regression."""
        held = self.parts["held"][0].mean(0)
        if task.regression:
            return replace(self, precision=1.0 / max((held - task.held_y).square().mean().item(), 1e-6))
        warm = Temperature(fit_temperature(held, task.held_y))
        parts = {name: [warm.probabilities(draws) for draws in each] for name, each in self.parts.items()}
        return replace(self, parts=parts)

    def scores(self, task: Task) -> dict[str, float]:
        """Return all scores of the table."""

        def score(name: str, y: Tensor) -> Scores:
            return averaged(
                [
                    regressed(draws, self.precision, y) if task.regression else classified(draws.mean(0), y)
                    for draws in self.parts[name]
                ]
            )

        parts = {"held": task.held_y, "held_shifted": task.held_y, "test": task.test_y, "shifted": task.test_y}
        found = {f"{name}_{key}": v for name, y in parts.items() for key, v in score(name, y).items()}
        known, foreign = (uncertainties(self.parts[name][0], task.regression) for name in ("test", "other"))
        return found | auroc(known, foreign) | {"information": known[1].double().mean().item()}
