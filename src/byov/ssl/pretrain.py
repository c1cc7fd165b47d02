"""Pretraining without labels, from a recipe: BYOL, or with a posterior BYOV."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric import Fabric
from torch import Generator, Tensor, nn

from byov import models
from byov.data import Batch, FolderSet, ImageSet
from byov.data.config import DataConfig, Like
from byov.data.datasets import check_memory
from byov.posterior import Gaussian
from byov.posterior.select import select
from byov.ssl.byol import BYOL
from byov.ssl.byov import BYOV, Coverage, PriorName, coverage, prior_by_name
from byov.ssl.heads import Student
from byov.ssl.views import Views
from byov.train import checkpoint
from byov.train.batchnorm import synchronise
from byov.train.config import Count, Fraction, LogVariance, NonNegative, Share, Width, check, from_dict
from byov.train.loop import Place
from byov.train.posterior_config import ObjectiveConfig
from byov.train.run import execute, reopen
from byov.train.schedules import scale_decay
from byov.train.train_config import TrainConfig


@dataclass(frozen=True)
class EncoderConfig:
    """The encoder and the size of its heads; a recipe's [model]."""

    encoder: str = "vit-nano/4"
    """A name of `byov.models` (ours, timm's or torchvision's), or `python:module:function` for your own."""
    pretrained: bool = False
    hidden: Width = 4096
    outputs: Width = 256

    def __post_init__(self) -> None:
        check(self, "model")


@dataclass(frozen=True)
class GaussianConfig(ObjectiveConfig):
    """The posterior and its prior; a recipe's [posterior]. family = "none" is BYOL."""

    family: Literal["none", "gaussian"] = "gaussian"
    relative: Share = 0.05
    """σ at the start, as a share of each layer's own scale (the root mean square of its weights)."""
    log_var: LogVariance | None = None
    """Or ρ = log σ² at the start, the same for every weight, as in the paper (−10)."""
    coverage: Coverage = "all"
    prior: PriorName = "normal"
    beta_end: NonNegative = 0.1

    @property
    def gaussian(self) -> bool:
        return self.family == "gaussian"

    @property
    def start(self) -> Gaussian:
        """Return the posterior that a weight starts with."""
        return Gaussian(relative=self.relative) if self.log_var is None else Gaussian(self.log_var)


@dataclass(frozen=True)
class SSLConfig:
    """The teacher; a recipe's [ssl]."""

    tau_base: Fraction = 0.99
    tau_end: Fraction = 1.0
    """Where τ's cosine ends; at `tau_base`, τ is constant."""
    tau_batch: Count | None = None
    """The batch size that both are meant for; at another, τ becomes τ^κ (Busbridge et al.). None: never."""

    def __post_init__(self) -> None:
        check(self, "ssl")


@dataclass(frozen=True)
class Pretrain:
    """A whole recipe."""

    data: DataConfig = field(default_factory=DataConfig)
    model: EncoderConfig = field(default_factory=EncoderConfig)
    posterior: GaussianConfig = field(default_factory=GaussianConfig)
    ssl: SSLConfig = field(default_factory=SSLConfig)
    views: Views = field(default_factory=Views)
    train: TrainConfig = field(default_factory=TrainConfig)


class PretrainTask:
    """BYOL or BYOV on a set of images, as the training loop needs it."""

    module: BYOL

    def __init__(self, recipe: Pretrain, data: ImageSet | FolderSet, world: int, device: torch.device) -> None:
        self.recipe = recipe
        self.data = data.to(device) if isinstance(data, ImageSet) else data
        self.module = build(recipe, data, world, device)
        self.views = self.module.views

    def trainable(self) -> nn.Module:
        return self.module.student

    def inputs(self, batch: Batch, generator: Generator, place: Place) -> tuple[Tensor, Tensor, Tensor]:
        # Drawn for the whole global batch, then split as the images are: the same for any number of processes.
        drawn = self.views.draw(len(batch.images) * place.world, generator, place.device)
        return batch.images, drawn[:, place.rank :: place.world], self.recipe.posterior.beta(place)

    def after(self, step: int, total: int) -> None:
        self.module.update_teacher(step, total)


def build(recipe: Pretrain, data: ImageSet | FolderSet | Like, world: int, device: torch.device) -> BYOL:
    """Build the module that a recipe describes, for images like `data`."""
    encoder, features = models.encoder(recipe.model.encoder, data.channels, data.image_size, recipe.model.pretrained)
    heads = recipe.model.hidden * (features + 3 * recipe.model.outputs)
    name = f"model.hidden = {recipe.model.hidden} with model.outputs = {recipe.model.outputs}"
    check_memory(2 * 4 * heads, name)  # the teacher has them too
    student = Student(encoder, features, recipe.model.hidden, recipe.model.outputs)
    if world > 1:
        student = synchronise(student, device)  # type: ignore[assignment]
    views = replace(recipe.views, mean=recipe.views.mean or data.mean, std=recipe.views.std or data.std)
    views.check_channels(data.channels)
    factor = recipe.train.batch_size / recipe.ssl.tau_batch if recipe.ssl.tau_batch else 1.0
    tau_base, tau_end = (scale_decay(decay, factor) for decay in (recipe.ssl.tau_base, recipe.ssl.tau_end))
    posterior = recipe.posterior
    if posterior.family == "none":
        return BYOL(student, views, tau_base, tau_end)
    rules = coverage(posterior.coverage, posterior.start)
    covered = sum(layout.numel for _, layout in select(student, rules))
    number = posterior.number(len(data), covered)
    prior = prior_by_name(posterior.prior, posterior.prior_std)
    return BYOV(student, views, rules, prior, number, tau_base, posterior.shared_draw, tau_end)


def noise_cost(module: BYOV, beta: float) -> str:
    """Say what the posterior's noise may cost.

    Where the data hold a weight in place, its noise settles where it costs β/2N of loss; where they do not, it is free.
    """
    weights = sum(factor.layout.numel for factor in module.factors)
    most = beta * weights / (2 * module.kl_scale)
    return (
        f"{weights:,} weights have a posterior. With β = {beta:g} and N = {module.kl_scale:,.0f} their noise may cost"
        f" up to βP/2N = {most:.3g} of the loss, which for BYOL lies between 0 and 8."
    )


def start(recipe: Pretrain, run: Path, resume: bool = False) -> bool:
    """Run a recipe in a folder, to its end or its time limit; return True if the end was reached."""

    def make(recipe: Pretrain, data: ImageSet | FolderSet, fabric: Fabric) -> tuple[PretrainTask, dict[str, Any]]:
        task = PretrainTask(recipe, data, fabric.world_size, fabric.device)
        module = task.module
        about = {"kl_scale": getattr(module, "kl_scale", None), "tau_base": module.tau_base, "tau_end": module.tau_end}
        return task, about

    def note(task: PretrainTask) -> str:
        return noise_cost(task.module, recipe.posterior.beta_end) if isinstance(task.module, BYOV) else ""

    return execute("pretrain", recipe, run, resume, make, note)


def restore(run: Path, device: torch.device | str = "cpu") -> tuple[BYOL, Pretrain]:
    """Load the module of a run from its checkpoint, and its recipe."""
    state, like = reopen(run, "pretrain")
    recipe = from_dict(Pretrain, state["recipe"]["config"])
    bare = replace(recipe, model=replace(recipe.model, pretrained=False))  # its weights are in the checkpoint
    module = build(bare, like, 1, torch.device(device))
    checkpoint.fill(module, state["module"], run)
    return module.to(device).eval(), recipe
