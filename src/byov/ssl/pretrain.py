"""Pretraining without labels, from a recipe: BYOL, or with a posterior BYOV."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from torch import Generator, Tensor, nn

from byov.data import Batch, FolderSet, ImageSet
from byov.data.config import DataConfig, Like
from byov.models import entry
from byov.posterior import beta, kl_scale
from byov.posterior.objective import Schedule
from byov.posterior.select import select
from byov.ssl.byol import BYOL
from byov.ssl.byov import BYOV, Coverage, PriorName, coverage, prior_by_name
from byov.ssl.heads import Student
from byov.ssl.views import Views
from byov.train import checkpoint
from byov.train.config import from_dict, to_dict
from byov.train.loop import Loop, Place, TrainConfig, make_fabric
from byov.train.run import claim, summary
from byov.train.schedules import scale_decay
from byov.train.sync_batchnorm import synchronise


@dataclass(frozen=True)
class EncoderConfig:
    """Which network learns to see; a recipe's [model]."""

    encoder: str = "vit-nano/4"
    """A name of `byov.models` (ours, timm's or torchvision's), or `python:module:function` for one's own."""
    pretrained: bool = False
    hidden: int = 4096
    outputs: int = 256


@dataclass(frozen=True)
class GaussianConfig:
    """What is Bayesian, and how much; a recipe's [posterior]. family = "none" is BYOL."""

    family: Literal["none", "gaussian"] = "gaussian"
    log_var: float = -10.0
    coverage: Coverage = "all"
    prior: PriorName = "normal"
    prior_std: float = 1.0
    beta_start: float = 0.0
    beta_end: float = 1.0
    beta_schedule: Schedule = "cosine"
    kl_scale: Literal["dataset", "parameters", "none"] | float = "dataset"
    shared_draw: bool = False

    def __post_init__(self) -> None:
        if min(self.beta_start, self.beta_end) < 0:
            raise ValueError("posterior.beta_start and posterior.beta_end are at least 0.")


@dataclass(frozen=True)
class SSLConfig:
    """The teacher; a recipe's [ssl]."""

    tau_base: float = 0.99
    tau_batch: int | None = None
    """The batch that `tau_base` is meant for: τ^κ at another (Busbridge et al.). None: taken as it is."""


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
    """BYOL or BYOV on a set of images, as the loop wants it."""

    module: BYOL

    def __init__(self, recipe: Pretrain, data: ImageSet | FolderSet, world: int, device: torch.device) -> None:
        self.recipe = recipe
        self.data = data.to(device) if isinstance(data, ImageSet) else data
        self.module = build(recipe, data, world, device)
        self.views = self.module.views

    def trainable(self) -> nn.Module:
        return self.module.student

    def inputs(self, batch: Batch, generator: Generator, place: Place) -> tuple[Tensor, Tensor, Tensor]:
        # Drawn for the whole global batch, then shared out as the images are: any number of processes sees the same.
        drawn = self.views.draw(len(batch.images) * place.world, generator, place.device)
        posterior = self.recipe.posterior
        weight = beta(place.step, place.total, posterior.beta_end, posterior.beta_start, posterior.beta_schedule)
        return batch.images, drawn[:, place.rank :: place.world], torch.tensor(weight, device=place.device)

    def after(self, step: int, total: int) -> None:
        self.module.update_teacher(step, total)


def build(recipe: Pretrain, data: ImageSet | FolderSet | Like, world: int, device: torch.device) -> BYOL:
    """The module that a recipe describes, for images like `data`."""
    encoder, features = entry.encoder(recipe.model.encoder, data.channels, data.image_size, recipe.model.pretrained)
    student = Student(encoder, features, recipe.model.hidden, recipe.model.outputs)
    if world > 1:
        student = synchronise(student, device)  # type: ignore[assignment]
    views = replace(recipe.views, mean=recipe.views.mean or data.mean, std=recipe.views.std or data.std)
    tau_base = recipe.ssl.tau_base
    if recipe.ssl.tau_batch:
        tau_base = scale_decay(tau_base, recipe.train.batch / recipe.ssl.tau_batch)
    posterior = recipe.posterior
    if posterior.family == "none":
        return BYOL(student, views, tau_base)
    rules = coverage(posterior.coverage, posterior.log_var)
    covered = sum(layout.numel for _, layout in select(student, rules))
    number = kl_scale(posterior.kl_scale, len(data), covered)
    return BYOV(
        student,
        views,
        rules,
        prior_by_name(posterior.prior, posterior.prior_std),
        number,
        tau_base,
        posterior.shared_draw,
    )


def resolved(recipe: Pretrain, module: BYOL, data: ImageSet | FolderSet) -> dict[str, Any]:
    """What a checkpoint should say beyond the recipe: the numbers that were derived from the data."""
    return {
        "data": {"digest": data.digest, "images": len(data), "mean": list(data.mean), "std": list(data.std)},
        "shape": [data.channels, data.image_size],
        "kl_scale": getattr(module, "kl_scale", None),
        "tau_base": module.tau_base,
    }


def start(recipe: Pretrain, run: Path, resume: bool = False) -> bool:
    """Run a recipe in a folder, to its end or its time limit; True if the end was reached."""
    from_checkpoint = claim(run, recipe, resume)
    fabric = make_fabric(recipe.train)
    torch.manual_seed(recipe.train.seed)  # the weights' start; every rank the same
    data = recipe.data.load()
    task = PretrainTask(recipe, data, fabric.world_size, fabric.device)
    about = {"kind": "pretrain", "config": to_dict(recipe), **resolved(recipe, task.module, data)}
    loop = Loop(fabric, task, recipe.train, run, about)
    if from_checkpoint:
        loop.resume()
    finished = loop.fit()
    if fabric.is_global_zero:
        Console(stderr=True).print(summary(loop, finished))
    return finished


def restore(run: Path, device: torch.device | str = "cpu") -> tuple[BYOL, Pretrain]:
    """The module of a run as its checkpoint left it, and its recipe."""
    state = checkpoint.load(run / "checkpoint.safetensors" if run.is_dir() else run)
    if not isinstance(state, dict) or state.get("recipe", {}).get("kind") != "pretrain":
        raise ValueError(f"{run} is not a pretraining run.")
    about = state["recipe"]
    recipe = from_dict(Pretrain, about["config"])
    channels, size = about["shape"]
    like = Like(channels, size, tuple(about["data"]["mean"]), tuple(about["data"]["std"]), about["data"]["images"])
    bare = replace(recipe, model=replace(recipe.model, pretrained=False))  # its weights are in the checkpoint
    module = build(bare, like, 1, torch.device(device))
    module.load_state_dict(state["module"])
    return module.to(device).eval(), recipe
