"""A recipe's [posterior]: the family, what it covers, and its regulariser: β·KL/N or an L2 penalty."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from byov.posterior import (
    ECMP,
    EMP,
    BayesianModule,
    DropConnect,
    Dropout,
    Ensemble,
    Family,
    Gaussian,
    Shared,
    input_layer,
    norm_layers,
    objective,
    output_layer,
)
from byov.posterior.factor import Factor
from byov.posterior.objective import Schedule
from byov.posterior.select import Rules
from byov.train.batchnorm import gates
from byov.train.config import LogVariance, NonNegative, Positive, Range, Share, Sigma, check
from byov.train.loop import Place

Name = Literal["gaussian", "dropout", "dropconnect", "ensemble", "emp", "ecmp"]
_COMPONENTS = ("ensemble", "emp", "ecmp")
_TAKEN_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("log_var", "relative"), ("gaussian",)),
    "p": ("dropout", "dropconnect"),
    "sigma": ("dropout", "dropconnect", *_COMPONENTS),
    **dict.fromkeys(("k", "start", "spread", "apart"), _COMPONENTS),
    "zero": ("emp", "ecmp"),
    "gain": ("gaussian", "dropout", "dropconnect", *_COMPONENTS),
}
"""The families that use a setting; a recipe may contain settings of several families."""
_WEIGH_THE_KL = ("beta_start", "beta_end", "beta_schedule", "kl_scale", "prior_std")


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """The initial σ of a Gaussian, the schedule of β, and N: the settings of [posterior] that all trainings share."""

    relative: Share = 0.05
    """Initial σ of a Gaussian, relative to each layer's scale (the root mean square of its weights)."""
    log_var: LogVariance | None = None
    """Or the initial ρ = log σ², the same for every weight; −10 in the paper."""
    prior_std: Positive = 1.0
    beta_start: NonNegative = 0.0
    beta_end: NonNegative = 1.0
    beta_schedule: Schedule = "cosine"
    kl_scale: Literal["auto", "dataset", "parameters", "none"] | float = "auto"
    """N of β·KL/N. "auto": the data set's size, as in the ELBO; for a Gaussian with labels `byov.posterior.usual_n`,
    without labels the number of its weights if that is larger, so that its noise costs at most β/2 of the loss,
    whatever the network and the data."""
    shared_draw: bool = False

    def __post_init__(self) -> None:
        check(self, "posterior")

    @property
    def gaussian(self) -> bool:
        """Return True if any weight has a Gaussian posterior."""
        return False

    def gaussian_family(self) -> Gaussian:
        """Return the initial Gaussian of a weight."""
        return Gaussian(relative=self.relative) if self.log_var is None else Gaussian(self.log_var)

    def number(self, dataset: int, weights: int) -> float:
        """Return N for this size of data set and this number of weights with a posterior."""
        if self.kl_scale == "auto":
            return float(max(dataset, weights) if self.gaussian else dataset)
        return objective.kl_scale(self.kl_scale, dataset, weights)

    def beta(self, place: Place) -> Tensor:
        """Return β at a step, as a tensor: a Python number would recompile the graph at every step."""
        value = objective.beta(place.step, place.total, self.beta_end, self.beta_start, self.beta_schedule)
        return torch.full((), value, device=place.device)  # created there: a copy from the host would wait for the GPU


def is_shared(factor: Factor) -> bool:
    """Check whether a factor is the noise of equation (3), on weights shared by all draws."""
    return isinstance(factor.family, Shared)


@dataclass(frozen=True)
class L2Config:
    """λ₁ … λ₄ of the patching paper's appendix C.1, times the batch size: a recipe's [posterior.l2].

        loss = cross-entropy + 1/B · (λ₁ Σ‖M_ik‖² + λ₂ Σ‖m_jk‖² + λ₃ Σ‖M_i‖² + λ₄ Σ‖m_j‖²)

    The sums are over the weights and biases of all K components of patched layers, and those of shared layers. The
    paper uses 0.001 for all four. Unlike equation (6), this has no factor ½ and no mixing probabilities: both are
    absorbed into the λ. For dropout, DropConnect and `zero` the learned parameter is the mean, (1 − p)·M.
    """

    patched_weights: float = 1e-3
    patched_biases: float = 1e-3
    shared_weights: float = 1e-3
    shared_biases: float = 1e-3

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not (isfinite(value) and value >= 0):
                raise ValueError(f"posterior.l2.{each.name} is a λ of at least 0, not {value}.")

    def penalty(self, net: nn.Module) -> Tensor:
        """Return the sum in parentheses."""
        return torch.stack([weight * tensor.square().sum() for weight, tensor in self._terms(net) if weight]).sum()

    def _terms(self, net: nn.Module) -> Iterator[tuple[float, Tensor]]:
        factors, shared = (net.factors, net.net) if isinstance(net, BayesianModule) else ([], net)
        yield 1.0, next(net.parameters()).new_zeros(())  # so that the sum is not empty if every λ is 0
        for factor in factors:
            flat = factor.roles["components" if "components" in factor.roles else "mean"]
            patched = self.patched_weights, self.patched_biases
            weights, biases = (self.shared_weights, self.shared_biases) if is_shared(factor) else patched
            if weights == biases:
                yield weights, flat
                continue
            for slot, part in zip(factor.layout.slots, torch.split(flat, factor.layout.sizes, dim=-1), strict=True):
                yield (biases if slot.mask is None else weights), part
        for name, point in shared.named_parameters():
            if point.requires_grad:
                yield (self.shared_biases if "bias" in name.rpartition(".")[2] else self.shared_weights), point


@dataclass(frozen=True)
class FamilyConfig(ObjectiveConfig):
    """Which weights are random, and how much."""

    family: Literal["none", "swag"] | Name = "swag"
    """"swag" trains the plain network and follows its weights, as `byov.SWAG` does: our recommendation."""
    on: Literal["all", "norm+output", "input+norm+output", "norm", "output", "before-norm"] = "all"
    """The layers covered; "before-norm" puts dropout before every BatchNorm, as in the patching paper."""
    output_family: Name | None = None
    """Another family for the output layer; `family` covers the rest of `on`."""
    p: float = 0.005
    k: Annotated[int, Range(0, 10_000)] = 5
    sigma: Sigma = 0.0
    shared_sigma: Sigma = 0.0
    """σ of equation (3): fixed noise on weights without their own posterior."""
    start: Literal["auto", "copy", "reset"] = "auto"
    """Initial components: "auto" is "reset" for an explicit ensemble from scratch, otherwise "copy". In a pretrained
    ensemble all components start at the pretrained weights, and only the new output layers differ."""
    spread: Literal["auto"] | float = "auto"
    """Initial distance between components, relative to each weight; "auto" adapts it to the depth, as in `byov.EMP`,
    and is 0 for an explicit ensemble, whose output layers differ anyway."""
    learn_probs: bool = False
    zero: bool = False
    """Fix one component of EMP or ECMP at 0 (D.1)."""
    penalty: Literal["kl", "l2"] = "kl"
    """"kl" is β·KL/N; "l2" is the penalty of the patching paper's appendix C.1, with the λ of [posterior.l2]."""
    points: bool = False
    """Include parameters without a posterior in the KL, as in equation (6); also applies if `family` is none."""
    l2: L2Config = field(default_factory=L2Config)
    alternate: int = 0
    """Coordinate descent (C.2): this many steps on shared weights, then as many on the posterior; 0: jointly."""
    gain: float = 1.0
    """Factor on the gradients of weights with a posterior. A step moves only one of K components: under SGD, K
    compensates for this."""
    apart: float | None = None
    """A separate factor for the part of the gradients that moves components apart, while `gain` is for their mean.
    None: the same factor. Under SGD, K for both also lets gradient noise drive them apart K times as fast as 1 does.
    Like `k` and `spread`, it is ignored without components, so that a recipe for patches also works for baselines."""

    def __post_init__(self) -> None:
        super().__post_init__()
        used = {self.family, self.output_family} - {None}
        if self.output_family is not None and self.family in ("none", "swag"):
            raise ValueError("posterior.output_family is used beside another family: set posterior.family, too.")
        if self.output_family is not None and self.on == "output":
            raise ValueError("posterior.output_family is used beside another family: set posterior.on, such as norm.")
        if self.family == "swag" and (self.on != "all" or self.alternate > 0):
            what = "on" if self.on != "all" else "alternate"
            raise ValueError(
                f"posterior.{what} is not for SWAG, which follows all weights: set posterior.family, such as gaussian."
            )
        if self.on == "before-norm" and self.family not in ("dropout", "none"):
            raise ValueError(f"posterior.on = 'before-norm' is for dropout, not for {self.family}.")
        if self.learn_probs and not self.components:
            raise ValueError(f"posterior.learn_probs is for {', '.join(_COMPONENTS)}, not for {self.family}.")
        if self.shared_sigma and (self.family in ("none", "swag") or self.on == "all"):
            raise ValueError("posterior.shared_sigma is for weights beside patches: set posterior.family and .on.")
        if self.penalty == "l2" and "gaussian" in used:
            raise ValueError("posterior.penalty = 'l2' does not act on a Gaussian's variance: it needs the KL.")
        if self.penalty == "kl" and self.l2 != L2Config():
            raise ValueError("The λ of posterior.l2 are for posterior.penalty = 'l2', not for 'kl'.")
        if self.alternate < 0:
            raise ValueError(f"posterior.alternate is a number of steps, or 0, not {self.alternate}.")
        if self.alternate and (self.family == "none" or self.on == "before-norm"):
            raise ValueError("posterior.alternate needs a learned posterior beside shared weights.")
        if not 0 < self.gain < float("inf"):
            raise ValueError(f"posterior.gain is above 0, not {self.gain}.")
        if self.apart is not None and not 0 <= self.apart < float("inf"):
            raise ValueError(f"posterior.apart is at least 0, not {self.apart}.")
        self.rules()  # the families raise on invalid arguments

    @property
    def gaussian(self) -> bool:
        return "gaussian" in (self.family, self.output_family)

    def number(self, dataset: int, weights: int) -> float:
        """Return N for this size of data set and this number of weights with a posterior."""
        if self.kl_scale == "auto" and self.gaussian:
            return objective.usual_n(dataset, weights)
        return super().number(dataset, weights)

    @property
    def components(self) -> bool:
        """Return True if any weight has a mixture of components."""
        return self.family in _COMPONENTS or self.output_family in _COMPONENTS

    def unused(self) -> list[str]:
        """Return the non-default settings that none of the chosen families uses."""
        default, used = FamilyConfig(), {self.family, self.output_family}
        changed = [each.name for each in fields(self) if getattr(self, each.name) != getattr(default, each.name)]
        unused = {name for name in changed if not used & set(_TAKEN_BY.get(name, used))}
        if self.family == "swag" and self.penalty == "kl" and not self.points:  # there is no KL
            unused |= set(changed) & set(_WEIGH_THE_KL)
        return [f"posterior.{name}" for name in changed if name in unused]

    def note(self) -> str:
        """Return a sentence that lists unused settings, or ""."""
        unused = ", ".join(self.unused())
        return f"Not used by posterior.family = {self.family}: {unused}." if unused else ""

    def rules(self, pretrained: bool = False) -> Rules | None:
        """Return the rules for `bayesianize`; None for a network that is trained without a posterior."""
        if self.family == "none" or self.family == "swag":
            return None
        rules = self._patches(self._family(self.family, pretrained), pretrained)
        return {**rules, "*": Shared(self.shared_sigma)} if self.shared_sigma and isinstance(rules, dict) else rules

    def _patches(self, family: Family, pretrained: bool) -> Rules:
        output = family if self.output_family is None else self._family(self.output_family, pretrained)
        if self.on == "all":
            return family if self.output_family is None else {output_layer: output, "*": family}
        if self.on == "output":
            return {output_layer: family}
        place = {norm_layers: family} if self.on != "before-norm" else {gates: family}
        first = {input_layer: family} if self.on == "input+norm+output" else {}
        also = self.on.endswith("norm+output") or self.output_family is not None
        return {output_layer: output, **first, **place} if also else place

    def _family(self, name: Name, pretrained: bool) -> Family:
        start: Literal["copy", "reset"] = "reset" if name == "ensemble" and not pretrained else "copy"
        start = start if self.start == "auto" else self.start
        match name:
            case "gaussian":
                return self.gaussian_family()
            case "dropout":
                return Dropout(self.p, self.sigma)
            case "dropconnect":
                return DropConnect(self.p, self.sigma)
        kinds: dict[str, type[Ensemble | EMP | ECMP]] = {"ensemble": Ensemble, "emp": EMP, "ecmp": ECMP}
        # A recipe's ensemble starts from separate weights or new output layers: its members differ without a spread.
        auto = 0.0 if name == "ensemble" else None
        spread = auto if self.spread == "auto" else self.spread
        return kinds[name](self.k, None, self.sigma, start, spread, self.learn_probs, self.zero)
