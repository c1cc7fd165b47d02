"""A recipe's [posterior]: which family, where, and what pulls at it, β·KL/N or the L2 penalty in its place."""

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
"""Which families have a use for a setting; a recipe may hold those of several."""


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """How wide a Gaussian starts, β over training and N: what every kind of training has in a recipe's [posterior]."""

    relative: Share = 0.05
    """σ of a Gaussian at the start, as a share of each layer's own scale (the root mean square of its weights)."""
    log_var: LogVariance | None = None
    """Or ρ = log σ² at the start, the same for every weight; the paper's is −10."""
    prior_std: Positive = 1.0
    beta_start: NonNegative = 0.0
    beta_end: NonNegative = 1.0
    beta_schedule: Schedule = "cosine"
    kl_scale: Literal["auto", "dataset", "parameters", "none"] | float = "auto"
    """N of β·KL/N. "auto": the data set's size, as in the ELBO; of a Gaussian with labels `byov.posterior.usual_n`;
    of one without them the number of its weights where that is larger, so that its noise costs β/2 of the loss at most,
    whatever the network and the data."""
    shared_draw: bool = False

    def __post_init__(self) -> None:
        check(self, "posterior")

    @property
    def gaussian(self) -> bool:
        """Say if anything has a Gaussian posterior."""
        return False

    def gaussian_family(self) -> Gaussian:
        """Return the Gaussian that a weight starts with."""
        return Gaussian(relative=self.relative) if self.log_var is None else Gaussian(self.log_var)

    def number(self, dataset: int, weights: int) -> float:
        """Return N for a data set of that size and so many weights with a posterior."""
        if self.kl_scale == "auto":
            return float(max(dataset, weights) if self.gaussian else dataset)
        return objective.kl_scale(self.kl_scale, dataset, weights)

    def beta(self, place: Place) -> Tensor:
        """Return β at a step; a tensor, because a compiled graph would be made anew for every number."""
        value = objective.beta(place.step, place.total, self.beta_end, self.beta_start, self.beta_schedule)
        return torch.full((), value, device=place.device)  # filled there: a copy from the host would wait for the GPU


def is_shared(factor: Factor) -> bool:
    """Tell whether a factor is the noise of equation (3), on what all draws share."""
    return isinstance(factor.family, Shared)


@dataclass(frozen=True)
class L2Config:
    """λ₁ … λ₄ of the patching paper's appendix C.1, times the batch's size; a recipe's [posterior.l2].

        loss = cross-entropy + 1/B · (λ₁ Σ‖M_ik‖² + λ₂ Σ‖m_jk‖² + λ₃ Σ‖M_i‖² + λ₄ Σ‖m_j‖²)

    over the weights and biases of all K components of patched layers, and those of shared layers. The paper has 0.001
    for all four. Unlike equation (6) it has neither ½ nor the mixing probabilities in it: both are in the λ. Of dropout
    and DropConnect the parameter learned is the mean, (1 − p)·M.
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
        """Return the sum in brackets."""
        return torch.stack([weight * tensor.square().sum() for weight, tensor in self._terms(net) if weight]).sum()

    def _terms(self, net: nn.Module) -> Iterator[tuple[float, Tensor]]:
        factors, shared = (net.factors, net.net) if isinstance(net, BayesianModule) else ([], net)
        yield 1.0, next(net.parameters()).new_zeros(())  # so that there is a sum where every λ is 0
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
    """What is random, and how much."""

    family: Literal["none"] | Name = "gaussian"
    on: Literal["all", "norm+output", "input+norm+output", "norm", "output", "before-norm"] = "all"
    """Where; "before-norm" is dropout's place in the patching paper, before every BatchNorm."""
    output_family: Name | None = None
    """Another family for the output layer, beside `family` on the rest of `on`."""
    p: float = 0.005
    k: Annotated[int, Range(0, 10_000)] = 5
    sigma: Sigma = 0.0
    shared_sigma: Sigma = 0.0
    """σ of equation (3): the fixed noise of what has no posterior of its own."""
    start: Literal["auto", "copy", "reset"] = "auto"
    """Where components start: "auto" is "reset" for an explicit ensemble from scratch, else "copy". Of a pretrained
    ensemble all components start at the pretrained weights, and only the output layer, which is new, differs."""
    spread: Literal["auto"] | float = "auto"
    """How far components start apart, as a share of each weight; "auto" fits it to the depth, as `byov.EMP` does,
    and is 0 for an explicit ensemble, whose output layers differ anyway."""
    learn_probs: bool = False
    zero: bool = False
    """One of the components of EMP or ECMP is fixed at 0 (D.1)."""
    penalty: Literal["kl", "l2"] = "kl"
    """"kl" is β·KL/N; "l2" the penalty of the patching paper's appendix C.1, with the λ of [posterior.l2]."""
    points: bool = False
    """The KL counts parameters without a posterior too, as equation (6) does; also where `family` is none."""
    l2: L2Config = field(default_factory=L2Config)
    alternate: int = 0
    """Coordinate descent (C.2): so many steps on what is shared, then as many on what has a posterior; 0: together."""
    gain: float = 1.0
    """Times the gradients of what has a posterior. Of K components a step moves one: under SGD, K makes up for that."""
    apart: float | None = None
    """The same for what moves components apart, while `gain` moves their mean; None: the same number. Under SGD, K for
    both also lets the gradients' noise drive them apart K times as fast as 1 does. Without components, as `k` and
    `spread`, it has no use: a recipe for patches is one for its baselines."""

    def __post_init__(self) -> None:
        super().__post_init__()
        used = {self.family, self.output_family} - {None}
        if self.output_family is not None and self.family == "none":
            raise ValueError("posterior.output_family stands beside another family: set posterior.family, too.")
        if self.output_family is not None and self.on == "output":
            raise ValueError("posterior.output_family stands beside another family: set posterior.on to norm, say.")
        if self.on == "before-norm" and self.family not in ("dropout", "none"):
            raise ValueError(f"posterior.on = 'before-norm' is a place for dropout, not for {self.family}.")
        if self.learn_probs and not self.components:
            raise ValueError(f"posterior.learn_probs is for {', '.join(_COMPONENTS)}, not for {self.family}.")
        if self.shared_sigma and (self.family == "none" or self.on == "all"):
            raise ValueError("posterior.shared_sigma is the noise of what lies beside patches: set posterior.on, say.")
        if self.penalty == "l2" and "gaussian" in used:
            raise ValueError("posterior.penalty = 'l2' has no pull on a Gaussian's variance: it needs the KL.")
        if self.penalty == "kl" and self.l2 != L2Config():
            raise ValueError("The λ of posterior.l2 are for posterior.penalty = 'l2', not for 'kl'.")
        if self.alternate < 0:
            raise ValueError(f"posterior.alternate is a number of steps, or 0, not {self.alternate}.")
        if self.alternate and (self.family == "none" or self.on == "before-norm"):
            raise ValueError("posterior.alternate needs a posterior that is learned beside what is shared.")
        if not 0 < self.gain < float("inf"):
            raise ValueError(f"posterior.gain is above 0, not {self.gain}.")
        if self.apart is not None and not 0 <= self.apart < float("inf"):
            raise ValueError(f"posterior.apart is at least 0, not {self.apart}.")
        self.rules()  # the families refuse what they cannot be

    @property
    def gaussian(self) -> bool:
        return "gaussian" in (self.family, self.output_family)

    def number(self, dataset: int, weights: int) -> float:
        """Return N for a data set of that size and so many weights with a posterior."""
        if self.kl_scale == "auto" and self.gaussian:
            return objective.usual_n(dataset, weights)
        return super().number(dataset, weights)

    @property
    def components(self) -> bool:
        """Tell whether anything is a mixture of components."""
        return self.family in _COMPONENTS or self.output_family in _COMPONENTS

    def unused(self) -> list[str]:
        """Return the settings other than their default that no family here takes."""
        default, used = FamilyConfig(), {self.family, self.output_family}
        changed = [each.name for each in fields(self) if getattr(self, each.name) != getattr(default, each.name)]
        return [f"posterior.{name}" for name in changed if not used & set(_TAKEN_BY.get(name, used))]

    def note(self) -> str:
        """Return a sentence on what is not used, where anything is not."""
        unused = ", ".join(self.unused())
        return f"Not used by posterior.family = {self.family}: {unused}." if unused else ""

    def rules(self, pretrained: bool = False) -> Rules | None:
        """Return the rules for `bayesianize`; None for a network without a posterior."""
        if self.family == "none":
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
        # A recipe's ensemble starts anew, or with new output layers: nothing else has to tell its members apart.
        auto = 0.0 if name == "ensemble" else None
        spread = auto if self.spread == "auto" else self.spread
        return kinds[name](self.k, None, self.sigma, start, spread, self.learn_probs, self.zero)
