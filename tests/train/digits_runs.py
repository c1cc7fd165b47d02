"""Short supervised runs on the digits, with a network of one norm: ten steps in an epoch, a few milliseconds each."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from byov.data import load
from byov.posterior import BayesianModule
from byov.train.config import load_config
from byov.train.supervised import Classifier, Supervised, build

SMALL = [
    f"model.name=python:{__name__}:network",
    *("posterior.beta_end=0.01", "posterior.k=3", "posterior.p=0.05"),
    *("train.epochs=2", "train.batch=128", "train.lr=3e-2", "train.warmup=0.5", "train.log_every=1"),
    *("train.accelerator=cpu", "train.devices=1"),
]


def network(classes: int) -> nn.Module:
    """A norm with running statistics, an output layer, and biases."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, classes))


def recipe(*changes: str) -> Supervised:
    return load_config(Supervised, None, [*SMALL, *changes])


def built(*changes: str) -> Classifier:
    """The module as a run starts with it."""
    torch.manual_seed(recipe().train.seed)
    return build(recipe(*changes), load("digits", "train"), 10, 1, torch.device("cpu")).train()


def moved(*changes: str) -> Classifier:
    """The module away from its start, where components are one."""
    module = built(*changes)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def posterior(module: nn.Module) -> Any:
    """The network of a module, which has a posterior."""
    net = module.net
    assert isinstance(net, BayesianModule)
    return net


def standardised(images: Any) -> Tensor:
    """Digits, standardised by hand with the training digits' moments."""
    pixels = load("digits", "train").images.double() / 255  # type: ignore[union-attr]
    return ((images.double() / 255 - pixels.mean()) / pixels.std(correction=0)).float()


def digits() -> tuple[Tensor, Tensor]:
    """The test digits, standardised, and their labels."""
    test = load("digits", "test")
    assert test.labels is not None
    return standardised(test.images), test.labels  # type: ignore[union-attr]


def arguments(run: Any, *changes: str, resume: bool = False) -> list[str]:
    """The same as a command line."""
    sets = [word for change in (*SMALL, *changes) for word in ("--set", change)]
    return ["train", "--run", str(run), *sets, *(["--resume"] if resume else [])]
