"""Regression on a table of numbers from a recipe: any network and family, negative ELBO with one draw per batch.

This trains on one split, with the same loop as for images. `byov.train.regression` trains on all splits of a table at
once, for the paper's network and families.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import log, pi
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from byov.data import Batch
from byov.data.config import DataSpec
from byov.data.tables import Rows, Scale, Table, column_indices, table, training_rows, uci
from byov.models import regression_mlp
from byov.models.registry import call_entry
from byov.train import checkpoint
from byov.train.batchnorm import synchronise
from byov.train.config import Count, NonNegative, Positive, Rate, Width, check, from_dict
from byov.train.loop import Place
from byov.train.posterior_config import FamilyConfig
from byov.train.run import execute, reopen
from byov.train.supervised import Penalised, PenalisedTask, with_posterior
from byov.train.train_config import Precision, TrainConfig

PREFIXES, IMAGE_PREFIXES = ("table:", "uci:"), ("folder:", "npz:")

Targets = tuple[tuple[float, ...], tuple[float, ...]]
"""The means and the standard deviations of the targets."""


def names_table(name: str) -> bool:
    """Return whether a recipe's data set is a table; raise on an unknown prefix, and on a table file without one."""
    prefix, colon, _ = name.partition(":")
    bare = not colon and name.lower().endswith((".csv", ".tsv"))
    if bare or (colon and prefix + colon not in PREFIXES + IMAGE_PREFIXES):
        fault = "lacks a prefix" if bare else f"has the unknown prefix {prefix + colon!r}"
        known = "a table is table:FILE or uci:NAME, images are folder:PATH, npz:FILE or a known name"
        raise ValueError(f"data.name = {name!r} {fault}: {known}.")
    return name.startswith(PREFIXES)


@dataclass(frozen=True)
class TableConfig:
    """The table and its split: a recipe's [data]."""

    name: str = "uci:boston"
    """`table:FILE`, your own .csv or .npz, or `uci:NAME`, a set of the regression benchmark."""
    root: str | None = None
    target: str | None = None
    """The target's column in a .csv, by name or index; the last by default."""
    split: int = 0

    def table(self) -> Table:
        """Read the table; raise if it does not have the split."""
        prefix, _, name = self.name.partition(":")
        if f"{prefix}:" not in PREFIXES or not name:
            raise ValueError(f"A table's name is table:FILE or uci:NAME, not {self.name!r}.")
        found = uci(name, self.root) if prefix == "uci" else table(name, self.column)
        found.split(self.split)
        return found

    @property
    def column(self) -> str | int:
        if self.target is None:
            return -1
        return int(self.target) if self.target.removeprefix("-").isdecimal() else self.target

    def target_name(self, like: DataSpec) -> str:
        """Describe the target of a run: the name of its column, or its index from 0 if the file has no names."""
        if like.target is None and not self.name.endswith(".csv"):
            return "y"  # of an .npz
        last, column = like.channels, self.column
        place = f"column {column % (last + 1)} of 0 to {last}" if isinstance(column, int) else repr(column)
        chosen = " (the last column; data.target chooses another)" if self.target is None else ""
        return (place if like.target is None else repr(like.target)) + chosen

    def load(self) -> Rows:
        return training_rows(self.table(), self.split)


@dataclass(frozen=True)
class RegressorConfig:
    """The network: a recipe's [model]."""

    name: str = "mlp"
    """"mlp" is the network of the patching paper's appendix D.7; a `python:module:function` takes features, targets."""
    hidden: Width = 50
    norm: bool = True
    precision: Positive | None = None
    """Precision τ of the noise, at the target's original scale; None: learned with the weights."""

    def __post_init__(self) -> None:
        check(self, "model")


@dataclass(frozen=True)
class TableTrain(TrainConfig):
    """As for images, with defaults for a few hundred rows: a recipe's [train]."""

    epochs: Count = 400
    batch: Count = 100
    precision: Precision = "32-true"
    compile: bool = False
    lr: Rate = 1e-2
    warmup: NonNegative = 0.0


@dataclass(frozen=True)
class Tabular:
    """A complete recipe for regression on a table."""

    data: TableConfig = field(default_factory=TableConfig)
    model: RegressorConfig = field(default_factory=RegressorConfig)
    posterior: FamilyConfig = field(default_factory=FamilyConfig)
    train: TableTrain = field(default_factory=TableTrain)


class Step(NamedTuple):
    """The loss of one step, and other quantities to log; `error` is in standard deviations of y."""

    loss: Tensor
    nll: Tensor
    kl: Tensor
    error: Tensor


class Regressor(Penalised):
    """−log N(y | f(x), τ⁻¹) + β·KL/N of one batch under one draw, on standardised rows."""

    y_mean: Tensor
    y_std: Tensor

    def __init__(
        self, net: nn.Module, number: float, posterior: FamilyConfig, batch: int, targets: Targets, tau: float | None
    ) -> None:
        super().__init__(net, number, posterior, batch)
        self.targets = targets
        """In float64, for undoing the standardisation: float32 cannot resolve a minute in a date in seconds."""
        self.register_buffer("y_mean", torch.tensor(targets[0]))
        self.register_buffer("y_std", torch.tensor(targets[1]))
        start = [0.0 if tau is None else log(tau) + 2 * log(std) for std in targets[1]]
        self.log_precision = nn.Parameter(torch.tensor(start), requires_grad=tau is None)
        """log τ of the standardised targets."""

    def forward(self, x: Tensor, y: Tensor, weight: Tensor) -> Step:
        error = (self.net(x.to(self.dtype)).float() - y).square()
        each = 0.5 * (self.log_precision.exp() * error - self.log_precision + log(2 * pi))
        nll = each.sum(1).mean()
        penalty = self.penalty(nll)
        return Step(nll + weight * penalty, nll.detach(), penalty.detach(), error.mean().sqrt().detach())

    @property
    def precision(self) -> Tensor:
        """Return τ at the targets' original scale, (T,), in float64 on the CPU."""
        return self.log_precision.detach().cpu().double().exp() / self.target_scale.std.square()

    @property
    def target_scale(self) -> Scale:
        return Scale(*(torch.tensor(moment, dtype=torch.float64) for moment in self.targets))


class TableTask(PenalisedTask):
    """A regression on a table's rows, with the interface of the training loop."""

    module: Regressor

    def __init__(self, recipe: Tabular, data: Rows, world: int, device: torch.device) -> None:
        module = build(recipe, data, (data.y_mean, data.y_std), world, device)
        super().__init__(module, recipe.model.name, recipe.posterior, recipe.train, world)
        self.data = data.to(device)

    def trainable(self) -> nn.Module:
        return self.module

    def about(self) -> dict[str, Any]:
        data = self.data
        names = {"columns": list(data.columns), "target": data.target} if data.columns else {}
        return {"kl_scale": self.module.kl_scale, "targets": [list(data.y_mean), list(data.y_std)], **names}

    def inputs(self, batch: Batch, generator: Generator, place: Place) -> tuple[Any, ...]:
        return batch.images, batch.labels, self.weight(place)


def build(recipe: Tabular, like: Rows | DataSpec, targets: Targets, world: int, device: torch.device) -> Regressor:
    """Build the module described by a recipe, for rows with as many features as `like` has channels."""
    name, features, outputs = recipe.model.name, like.channels, len(targets[0])
    if name == "mlp":
        net: nn.Module = regression_mlp(features, recipe.model.hidden, outputs, recipe.model.norm)
    elif name.startswith("python:"):
        net = call_entry(name, features, outputs)
    else:
        raise ValueError(f"A table's network is mlp, or python:module:function, not {name!r}.")
    if world > 1:
        net = synchronise(net, device)
    net, number = with_posterior(net, recipe.posterior, pretrained=False, examples=len(like))
    return Regressor(net, number, recipe.posterior, recipe.train.batch_size, targets, recipe.model.precision)


def start(recipe: Tabular, run: Path, resume: bool = False) -> bool:
    """Run a recipe in a folder until its end or its time limit; return True if it reached the end."""
    return execute("table", recipe, run, resume, TableTask)


def restore(run: Path, device: torch.device | str = "cpu") -> tuple[Regressor, Tabular, DataSpec]:
    """Load the module, the recipe and the data properties of a run from its checkpoint."""
    state, like = reopen(run, "table")
    about = state["recipe"]
    recipe = from_dict(Tabular, about["config"])
    y_mean, y_std = map(tuple, about["targets"])
    module = build(recipe, like, (y_mean, y_std), 1, torch.device(device))
    checkpoint.fill(module, state["module"], run)
    names = {"columns": tuple(about.get("columns", ())), "target": about.get("target")}  # missing in older runs
    return module.to(device).settled().eval(), recipe, replace(like, digest=about["data"]["digest"], **names)


def held_out(recipe: Tabular, like: DataSpec, root: Path | None = None) -> tuple[Table, Tensor, Tensor]:
    """Return the table of a run, its test rows and their targets (n, T); raise if the table changed since training.

    Named columns may be in another order. Other rows would give other splits.
    """
    config = replace(
        recipe.data, root=str(root or recipe.data.root or "") or None, target=like.target or recipe.data.target
    )
    data = config.table()
    if data.columns and like.columns:
        places = column_indices(data.columns, like.columns, like.target, config.name)
        data = replace(data, X=data.X[:, places], columns=like.columns)
    if data.digest != like.digest:
        raise ValueError(f"{config.name} has changed since the run was trained on it, so its test rows are unknown.")
    _, test = data.split(config.split)
    return data, data.X[test], data.y[test][:, None]
