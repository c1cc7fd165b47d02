"""CIFAR-10 and CIFAR-100 for `byov reproduce defaults` at scale full: ResNet-18 with SGD and a tuned decay, on a GPU.

Every method is recipes/cifar100_resnet18.toml with a few changes. SWAG follows a training of its own,
whose learning rate stays constant; that of the others ends at 0. The β of a Gaussian, as in `defaults_methods`, would
also reduce the recipe's weight decay, 1/(N·0.14²), so its prior is narrower by √β to give all methods the same decay.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from byov.reproduce.defaults_methods import MEMBERS, METHODS, Fitted, Read
from byov.reproduce.defaults_sets import IMAGE_MOVES, Task
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
    "SWAG": ("family=swag", "on=all"),
    "dropout": ("family=dropout", "on=all", "p=0.05", "gain=1"),
    "Gaussian": (*_COLD, "on=all", "beta_end=8.6e-5", "prior_std=0.0013"),
    "Gaussian output": (*_COLD, "on=output", "beta_end=0.001", "prior_std=0.00443"),
    "EMP": ("family=emp", "spread=auto"),
    "ECMP": ("spread=auto",),
}
"""The changes of each method to [posterior] of the recipe."""


class OfRun(Fitted):
    """The network of a run, for pixels in [0, 1]."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.network)
        self.run = run

    def draws(self, x: Tensor, regression: bool) -> Tensor:
        """Return probabilities (S, N, C) on the CPU, with the same draws for each batch of images."""
        parts = standardised(self.run, x).split(BATCH)
        return torch.cat([super(OfRun, self).draws(part, regression).cpu() for part in parts], 1)


def measure(context: Context, name: str, seed: int) -> dict[str, dict[str, float]]:
    """Train all methods with a seed, unless they are already trained, and read them."""
    members = [read(context, name, "plain", seed + i) for i in range(MEMBERS)]
    task = members[0][1]
    found = {"plain": members[0][0], "plain + temperature": members[0][0].tempered(task)}
    found |= {method: read(context, name, method, seed)[0] for method in CHANGES if method != "plain"}
    found["ensemble of 5"] = Read.ensemble([member for member, _ in members])
    return {method: found[method].scores(task) for method in METHODS if method in found}


def read(context: Context, name: str, method: str, seed: int) -> tuple[Read, Task]:
    """Return the predictions of a method, and their task."""
    own = replace(context, seed=seed)
    changes = (f"posterior.{change}" for change in CHANGES[method])
    recipe = load_here(own, Supervised, RECIPE, f"data.name={name}", *changes)
    reading = Reading(device=own.device, root=own.root)
    run = open_run(trained(own, f"{name}_{method.replace(' ', '_')}", recipe), reading)
    task = task_of(run)
    return Read.of(OfRun(run), task), task


def task_of(run: Run) -> Task:
    """Return a task with the held-out and test images of a run, without its training images."""
    held = run.load_own("holdout")
    assert held.labels is not None
    x, y = held.images.to(run.pixels.device).float() / 255, held.labels.cpu()
    return Task(x[:0], y[:0], x, y, run.pixels, run.labels.cpu(), IMAGE_MOVES, lambda: run.network)
