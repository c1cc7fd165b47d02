"""Self-supervised pretraining from a recipe: any objective, with or without a posterior over the student."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Generator, Tensor, nn

from byov import models
from byov.data import Batch, FolderSet, ImageSet
from byov.data.config import DataConfig, DataSpec
from byov.data.datasets import check_memory
from byov.posterior import ECMP, EMP, Family, bayesianize
from byov.ssl.byov import Coverage, PriorName, coverage, prior_by_name
from byov.ssl.heads import Student, sees_batch
from byov.ssl.learner import Learner
from byov.ssl.objective import Objective
from byov.ssl.registry import OBJECTIVES, objective
from byov.ssl.views import Views
from byov.train import checkpoint
from byov.train.batchnorm import synchronise
from byov.train.config import (
    Count,
    Fraction,
    NonNegative,
    Positive,
    Range,
    Width,
    check,
    from_dict,
)
from byov.train.loop import Place
from byov.train.posterior_config import ObjectiveConfig
from byov.train.run import execute, reopen
from byov.train.schedules import scale_decay
from byov.train.train_config import Auto, TrainConfig


@dataclass(frozen=True)
class EncoderConfig:
    """The encoder and the size of its heads: a recipe's [model]."""

    encoder: str = "vit-nano/4"
    """A name of `byov.models` (ours, timm's or torchvision's), or `python:module:function` for your own."""
    pretrained: bool = False
    hidden: Width | Auto = "auto"
    outputs: Width | Auto = "auto"
    """ "auto": the widths of the objective's paper."""

    def __post_init__(self) -> None:
        check(self, "model")


@dataclass(frozen=True)
class PosteriorConfig(ObjectiveConfig):
    """The posterior and its prior: a recipe's [posterior]. family = "none" is the published method."""

    family: Literal["none", "gaussian", "emp", "ecmp"] = "gaussian"
    k: Annotated[int, Range(1, 10_000)] = 5
    """Number of components of `emp` and `ecmp`."""
    spread: NonNegative = 0.0
    """Initial distance between the components, relative to each layer's scale."""
    coverage: Coverage = "all"
    prior: PriorName = "normal"
    beta_end: NonNegative = 0.1

    @property
    def gaussian(self) -> bool:
        return self.family == "gaussian"

    @property
    def start(self) -> Family:
        """Return the initial posterior of a weight."""
        if self.family in ("emp", "ecmp"):
            return {"emp": EMP, "ecmp": ECMP}[self.family](self.k, spread=self.spread)
        return self.gaussian_family()


@dataclass(frozen=True)
class SSLConfig:
    """The objective and its teacher: a recipe's [ssl]."""

    objective: str = "byol"
    """A name of `byov.ssl.registry`, or `python:module:Class` for your own."""
    temperature: Positive | None = None
    weights: tuple[NonNegative, ...] | None = None
    """Weights of the terms of the loss; None: as in the objective's paper."""
    tau_base: Fraction | Auto = "auto"
    """ "auto": as in the objective's paper."""
    tau_end: Fraction = 1.0
    """Final value of τ's cosine; if equal to `tau_base`, τ is constant."""
    tau_batch: Count | None = None
    """The batch size for which both are meant; at κ times this size, τ becomes τ^κ (Busbridge et al.). None: never."""

    def __post_init__(self) -> None:
        check(self, "ssl")


@dataclass(frozen=True)
class Pretrain:
    """A complete recipe; "auto" settings of the objective are resolved at once, so that checkpoints record them."""

    data: DataConfig = field(default_factory=DataConfig)
    model: EncoderConfig = field(default_factory=EncoderConfig)
    posterior: PosteriorConfig = field(default_factory=PosteriorConfig)
    ssl: SSLConfig = field(default_factory=SSLConfig)
    views: Views = field(default_factory=Views)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        kind, model, ssl = objective(self.ssl.objective), self.model, self.ssl
        model = replace(
            model,
            hidden=kind.hidden if model.hidden == "auto" else model.hidden,
            outputs=kind.outputs if model.outputs == "auto" else model.outputs,
        )
        object.__setattr__(self, "model", model)
        tau_base = kind.tau_base if ssl.tau_base == "auto" else ssl.tau_base
        object.__setattr__(self, "ssl", replace(ssl, tau_base=tau_base))
        kind(1, ssl.temperature, ssl.weights)  # raises if it takes none
        if self.train.accumulate > 1 and not kind.additive:
            others = " and ".join(name for name, other in OBJECTIVES.items() if other.additive)
            raise ValueError(
                f"The loss of {kind.title} compares the images of a batch, and its parts do not add up to it:"
                f" train.accumulate = {self.train.accumulate} is for {others}."
            )


GaussianConfig = PosteriorConfig
"""The former name, from when there was no other family."""


class PretrainTask:
    """A student and its objective on an image set, with the interface of the training loop."""

    module: Learner

    def __init__(self, recipe: Pretrain, data: ImageSet | FolderSet, world: int, device: torch.device) -> None:
        self.recipe = recipe
        self.data = data.to(device) if isinstance(data, ImageSet) else data
        self.module = build(recipe, data, world, device)
        self.views = self.module.views

    def trainable(self) -> nn.Module:
        return self.module.student

    def inputs(self, batch: Batch, generator: Generator, place: Place) -> tuple[Tensor, Tensor, Tensor]:
        # Drawn for the whole global batch, then split like the images: the same for any number of processes.
        drawn = self.views.draw(len(batch.images) * place.world, generator, place.device)
        return batch.images, drawn[:, place.rank :: place.world], self.recipe.posterior.beta(place)

    def after(self, step: int, total: int) -> None:
        self.module.update_teacher(step, total)

    def about(self) -> dict[str, Any]:
        return {name: getattr(self.module, name) for name in ("kl_scale", "tau_base", "tau_end")}

    def note(self) -> str:
        """Describe how much a Gaussian posterior's noise may cost.

        If the data determine a weight, its noise settles where it costs β/2N of loss; if not, it costs nothing.
        """
        module, posterior = self.module, self.recipe.posterior
        if not posterior.gaussian:
            return ""
        assert module.kl_scale is not None
        weights, beta = sum(factor.layout.numel for factor in module.factors), posterior.beta_end
        most = beta * weights / (2 * module.kl_scale)
        return (
            f"{weights:,} weights have a posterior. With β = {beta:g} and N = {module.kl_scale:,.0f} their noise may"
            f" cost up to βP/2N = {most:.3g} of the loss, which for {module.objective.title} {module.objective.extent}."
        )


def build(recipe: Pretrain, data: ImageSet | FolderSet | DataSpec, world: int, device: torch.device) -> Learner:
    """Build the module described by a recipe, for images like `data`."""
    kind = objective(recipe.ssl.objective)
    encoder, features = models.encoder(recipe.model.encoder, data.channels, data.image_size, recipe.model.pretrained)
    student = Student(encoder, features, heads=_heads(kind, recipe.model, features, sees_batch(encoder)))
    if world > 1:
        student = synchronise(student, device)  # type: ignore[assignment]
    views = replace(recipe.views, mean=recipe.views.mean or data.mean, std=recipe.views.std or data.std)
    views.check_channels(data.channels)
    factor = recipe.train.batch_size / recipe.ssl.tau_batch if recipe.ssl.tau_batch else 1.0
    assert recipe.ssl.tau_base != "auto"
    tau_base, tau_end = (scale_decay(decay, factor) for decay in (recipe.ssl.tau_base, recipe.ssl.tau_end))
    posterior = recipe.posterior
    asked = kind(int(recipe.model.outputs), recipe.ssl.temperature, recipe.ssl.weights)
    if posterior.family == "none":
        return Learner(student, views, asked, tau_base, tau_end)
    rules = coverage(posterior.coverage, posterior.start)
    prior = prior_by_name(posterior.prior, posterior.prior_std)
    q = bayesianize(student, rules, prior=prior, shared_draw=posterior.shared_draw)
    number = posterior.number(len(data), sum(factor.layout.numel for factor in q.factors))
    return Learner(q, views, asked, tau_base, tau_end, number)


def _heads(kind: type[Objective], model: EncoderConfig, features: int, norms: bool) -> tuple[nn.Module, Any]:
    """Build an objective's heads; raise if they and the teacher's would not fit into memory."""
    hidden, outputs = int(model.hidden), int(model.outputs)
    with torch.device("meta"):
        parts = [part for part in kind.heads(features, hidden, outputs, norms) if part is not None]
    count = sum(parameter.numel() for part in parts for parameter in part.parameters())
    name = f"model.hidden = {hidden} with model.outputs = {outputs}"
    check_memory((2 if kind.teacher else 1) * 4 * count, name)
    return kind.heads(features, hidden, outputs, norms)


def start(recipe: Pretrain, run: Path, resume: bool = False) -> bool:
    """Run a recipe in a folder until its end or its time limit; return True if it reached the end."""
    return execute("pretrain", recipe, run, resume, PretrainTask)


def restore(run: Path, device: torch.device | str = "cpu") -> tuple[Learner, Pretrain]:
    """Load the module and the recipe of a run from its checkpoint."""
    state, like = reopen(run, "pretrain")
    recipe = from_dict(Pretrain, state["recipe"]["config"])
    bare = replace(recipe, model=replace(recipe.model, pretrained=False))  # its weights are in the checkpoint
    module = build(bare, like, 1, torch.device(device))
    checkpoint.fill(module, state["module"], run)
    return module.to(device).eval(), recipe
