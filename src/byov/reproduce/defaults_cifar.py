"""CIFAR-10 and CIFAR-100 for `byov reproduce defaults` at scale full: ResNet-18 with SGD and a tuned decay, on a GPU.

Every method is recipes/cifar100_resnet18.toml with a few changes. A Gaussian's β, that of `defaults_methods`, would
lower the decay of the recipe, 1/(N·0.14²), too: its prior is narrower by √β, so that all methods have the same decay.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from byov.data.augmentations import augment
from byov.reproduce.defaults_methods import MEMBERS, METHODS, Fitted, Read
from byov.reproduce.defaults_sets import SEVERITY, SHIFTS, Move, Task
from byov.reproduce.experiment import Context
from byov.reproduce.patching_reading import BATCH, standardised
from byov.reproduce.recipes import load_here, trained
from byov.runs import Reading, Run, open_run
from byov.train.supervised import Supervised

NAMES = ("cifar10", "cifar100")
RECIPE = "cifar100_resnet18"
_COLD = ("family=gaussian", "gain=1", "kl_scale=dataset")
CHANGES: dict[str, tuple[str, ...]] = {
    "plain": ("family=none",),
    "dropout": ("family=dropout", "on=all", "p=0.05", "gain=1"),
    "Gaussian": (*_COLD, "on=all", "beta_end=8.6e-5", "prior_std=0.0013"),
    "Gaussian output": (*_COLD, "on=output", "beta_end=0.001", "prior_std=0.00443"),
    "EMP": ("family=emp", "spread=auto"),
    "ECMP": ("spread=auto",),
}
"""What each method changes in the recipe's [posterior]."""


class OfRun(Fitted):
    """A run's network, which takes pixels in [0, 1]."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.network)
        self.run = run

    def draws(self, x: Tensor, regression: bool) -> Tensor:
        """Return probabilities (S, N, C) on the CPU, under the same draws for each part of the images."""
        parts = standardised(self.run, x).split(BATCH)
        return torch.cat([super(OfRun, self).draws(part, regression).cpu() for part in parts], 1)


def measure(context: Context, name: str, seed: int) -> dict[str, dict[str, float]]:
    """Train all methods with a seed, or find them trained, and read them."""
    members = [read(context, name, "plain", seed + i) for i in range(MEMBERS)]
    task = members[0][1]
    found = {"plain": members[0][0], "plain + temperature": members[0][0].tempered(task)}
    found |= {method: read(context, name, method, seed)[0] for method in CHANGES if method != "plain"}
    found["ensemble of 5"] = Read.ensemble([member for member, _ in members])
    return {method: found[method].scores(task) for method in METHODS if method in found}


def read(context: Context, name: str, method: str, seed: int) -> tuple[Read, Task]:
    """Return what a method predicts, and of what."""
    own = replace(context, seed=seed)
    changes = (f"posterior.{change}" for change in CHANGES[method])
    recipe = load_here(own, Supervised, RECIPE, f"data.name={name}", *changes)
    run = open_run(trained(own, f"{name}_{method.replace(' ', '_')}", recipe), _reading(own))
    task = task_of(run)
    return Read.of(OfRun(run), task), task


def _reading(context: Context) -> Reading:
    return Reading(device=context.device, root=None if context.root is None else Path(context.root))


def task_of(run: Run) -> Task:
    """Return the images that a run held out and those of its test set; what it was trained on is left out."""
    held = run.load_own("holdout")
    assert held.labels is not None
    x, y = held.images.to(run.pixels.device).float() / 255, held.labels.cpu()
    moves: tuple[Move, ...] = tuple(_shift(name) for name in SHIFTS)
    return Task(x[:0], y[:0], x, y, run.pixels, run.labels.cpu(), moves, lambda: run.network)


def _shift(name: str) -> Move:
    return lambda x, generator: augment(x, name, SEVERITY, generator)
