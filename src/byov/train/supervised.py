"""Training with labels, from a recipe: any network under any family, negative ELBO with one draw per batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import Generator, Tensor, nn

from byov.data import Batch, CropFlip, FolderSet, ImageSet
from byov.data.config import DataConfig, Like
from byov.models import create
from byov.models.entry import resolve
from byov.posterior import (
    ECMP,
    EMP,
    BayesianModule,
    DropConnect,
    Dropout,
    Ensemble,
    Family,
    Gaussian,
    Normal,
    bayesianize,
    kl_scale,
    norm_layers,
    output_layer,
)
from byov.posterior.select import Rules
from byov.train.config import from_dict
from byov.train.loop import Place, TrainConfig
from byov.train.objective import ObjectiveConfig
from byov.train.run import execute, reopen
from byov.train.sync_batchnorm import synchronise


@dataclass(frozen=True)
class NetworkConfig:
    """Which network; a recipe's [model]."""

    name: str = "convnet32"
    """A name of `byov.models` (ours, timm's or torchvision's), or `python:module:function` that takes the classes."""
    pretrained: bool = False


@dataclass(frozen=True)
class FamilyConfig(ObjectiveConfig):
    """What is random, and how much; a recipe's [posterior]."""

    family: Literal["none", "gaussian", "dropout", "dropconnect", "ensemble", "emp", "ecmp"] = "gaussian"
    on: Literal["all", "norm+output", "norm", "output"] = "all"
    log_var: float = -10.0
    p: float = 0.005
    k: int = 5
    sigma: float = 0.0

    def rules(self) -> Rules | None:
        """The rules for `bayesianize`; None for a network without a posterior."""
        families: dict[str, Family] = {
            "gaussian": Gaussian(self.log_var),
            "dropout": Dropout(self.p, self.sigma),
            "dropconnect": DropConnect(self.p, self.sigma),
            "ensemble": Ensemble(self.k, sigma=self.sigma, start="reset"),
            "emp": EMP(self.k, sigma=self.sigma),
            "ecmp": ECMP(self.k, sigma=self.sigma),
        }
        if self.family == "none":
            return None
        family = families[self.family]
        places: dict[str, Rules] = {
            "all": family,
            "norm": {norm_layers: family},
            "output": {output_layer: family},
            "norm+output": {norm_layers: family, output_layer: family},
        }
        return places[self.on]


@dataclass(frozen=True)
class Supervised:
    """A whole recipe."""

    data: DataConfig = field(default_factory=DataConfig)
    model: NetworkConfig = field(default_factory=NetworkConfig)
    posterior: FamilyConfig = field(default_factory=FamilyConfig)
    augment: Literal["crop-flip", "none"] = "none"
    train: TrainConfig = field(default_factory=TrainConfig)


class Step(NamedTuple):
    """What one step computed: the loss to minimise, and what to look at."""

    loss: Tensor
    cross_entropy: Tensor
    kl: Tensor
    accuracy: Tensor


class Classifier(nn.Module):
    """cross-entropy + β·KL/N of one batch under one draw."""

    def __init__(self, net: nn.Module, augment: CropFlip, number: float) -> None:
        super().__init__()
        self.net, self.augment, self.kl_scale = net, augment, number

    def forward(self, images: Tensor, labels: Tensor, uniforms: Tensor, weight: Tensor) -> Step:
        logits = self.net(self.augment.render(images, uniforms))
        cross_entropy = F.cross_entropy(logits.float(), labels)
        kl = self.net.kl() / self.kl_scale if isinstance(self.net, BayesianModule) else torch.zeros_like(cross_entropy)
        correct = (logits.argmax(1) == labels).float().mean()
        return Step(cross_entropy + weight * kl, cross_entropy.detach(), kl.detach(), correct)


class SupervisedTask:
    """A classifier on a labelled set of images, as the loop wants it."""

    def __init__(self, recipe: Supervised, data: ImageSet | FolderSet, world: int, device: torch.device) -> None:
        if data.labels is None:
            raise ValueError(f"{data.name} has no labels: pretrain on it instead, with byov pretrain.")
        self.recipe = recipe
        self.data = data.to(device) if isinstance(data, ImageSet) else data
        self._module = build(recipe, data, len(data.class_names), world, device)

    @property
    def module(self) -> Classifier:
        return self._module

    def trainable(self) -> nn.Module:
        return self._module.net

    def inputs(self, batch: Batch, generator: Generator, place: Place) -> tuple[Any, ...]:
        drawn = self._module.augment.draw(len(batch.images) * place.world, generator, place.device)
        return batch.images, batch.labels, drawn[place.rank :: place.world], self.recipe.posterior.beta(place)

    def after(self, step: int, total: int) -> None:
        """Nothing follows a step."""


def build(
    recipe: Supervised, data: ImageSet | FolderSet | Like, classes: int, world: int, device: torch.device
) -> Classifier:
    """The module that a recipe describes, for images like `data`."""
    name = recipe.model.name
    if name.startswith("python:"):
        net = resolve(name.removeprefix("python:"))(classes)
        if not isinstance(net, nn.Module):
            raise ValueError(f"{name} gives {type(net).__name__}, not a torch.nn.Module.")
    else:
        net = create(name, classes, data.channels, data.image_size, recipe.model.pretrained)
    if world > 1:
        net = synchronise(net, device)
    rules, posterior = recipe.posterior.rules(), recipe.posterior
    covered = 1
    if rules is not None:
        prior = Normal(0.0, posterior.prior_std)
        net = bayesianize(net, rules, prior=prior, shared_draw=posterior.shared_draw)
        covered = sum(factor.layout.numel for factor in net.factors)
    still = recipe.augment == "none"
    augment = CropFlip(0 if still else 4, 0.0 if still else 0.5, data.mean, data.std)
    return Classifier(net, augment, kl_scale(posterior.kl_scale, len(data), covered))


def start(recipe: Supervised, run: Path, resume: bool = False) -> bool:
    """Run a recipe in a folder, to its end or its time limit; True if the end was reached."""

    def make(data: ImageSet | FolderSet, fabric: Fabric) -> tuple[SupervisedTask, dict[str, Any]]:
        task = SupervisedTask(recipe, data, fabric.world_size, fabric.device)
        return task, {"kl_scale": task.module.kl_scale, "class_names": list(data.class_names)}

    return execute("train", recipe, run, resume, make)


def restore(run: Path, device: torch.device | str = "cpu") -> tuple[Classifier, Supervised]:
    """The module of a run as its checkpoint left it, and its recipe."""
    state, like = reopen(run, "train")
    recipe = from_dict(Supervised, state["recipe"]["config"])
    bare = replace(recipe, model=replace(recipe.model, pretrained=False))  # its weights are in the checkpoint
    module = build(bare, like, len(state["recipe"]["class_names"]), 1, torch.device(device))
    module.load_state_dict(state["module"])
    return module.to(device).eval(), recipe
