"""What `byov pretrain` is told: a recipe's tables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from byov.data.config import DataConfig
from byov.posterior import ECMP, EMP, Family, Gaussian
from byov.ssl.byov import Coverage, PriorName
from byov.ssl.registry import OBJECTIVES, objective
from byov.ssl.views import Views
from byov.train.config import Count, Fraction, LogVariance, NonNegative, Positive, Range, Share, Width, check
from byov.train.posterior_config import ObjectiveConfig
from byov.train.train_config import Auto, TrainConfig


@dataclass(frozen=True)
class EncoderConfig:
    """The encoder and the size of its heads; a recipe's [model]."""

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
    """The posterior and its prior; a recipe's [posterior]. family = "none" is the published method."""

    family: Literal["none", "gaussian", "emp", "ecmp"] = "gaussian"
    relative: Share = 0.05
    """σ of a Gaussian at the start, as a share of each layer's own scale (the root mean square of its weights)."""
    log_var: LogVariance | None = None
    """Or ρ = log σ² at the start, the same for every weight, as in the paper (−10)."""
    k: Annotated[int, Range(1, 10_000)] = 5
    """How many components `emp` and `ecmp` have."""
    spread: NonNegative = 0.0
    """How far apart they start, as a share of each layer's scale."""
    coverage: Coverage = "all"
    prior: PriorName = "normal"
    beta_end: NonNegative = 0.1

    @property
    def gaussian(self) -> bool:
        return self.family == "gaussian"

    @property
    def start(self) -> Family:
        """Return the posterior that a weight starts with."""
        if self.family in ("emp", "ecmp"):
            return {"emp": EMP, "ecmp": ECMP}[self.family](self.k, spread=self.spread)
        return Gaussian(relative=self.relative) if self.log_var is None else Gaussian(self.log_var)


@dataclass(frozen=True)
class SSLConfig:
    """The objective and its teacher; a recipe's [ssl]."""

    objective: str = "byol"
    """A name of `byov.ssl.registry`, or `python:module:Class` for your own."""
    temperature: Positive | None = None
    weights: tuple[NonNegative, ...] | None = None
    """Of the loss; None: as in the objective's paper."""
    tau_base: Fraction | Auto = "auto"
    """ "auto": as in the objective's paper."""
    tau_end: Fraction = 1.0
    """Where τ's cosine ends; at `tau_base`, τ is constant."""
    tau_batch: Count | None = None
    """The batch size that both are meant for; at another, τ becomes τ^κ (Busbridge et al.). None: never."""

    def __post_init__(self) -> None:
        check(self, "ssl")


@dataclass(frozen=True)
class Pretrain:
    """A whole recipe; what it leaves open to the objective is filled in at once, so that a checkpoint says it."""

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
        kind(1, ssl.temperature, ssl.weights)  # raises where it takes none
        if self.train.accumulate > 1 and not kind.additive:
            others = " and ".join(name for name, other in OBJECTIVES.items() if other.additive)
            raise ValueError(
                f"The loss of {kind.title} compares the images of a batch, and its parts do not add up to it:"
                f" train.accumulate = {self.train.accumulate} is for {others}."
            )
