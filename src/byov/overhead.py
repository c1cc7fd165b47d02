"""Count the parameters of each family, and how many networks it can draw: Tables 1 and 3 of the patching paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from byov.posterior.family import Family
from byov.posterior.gaussian import Gaussian
from byov.posterior.layout import Layout, occurrences
from byov.posterior.mixture import ECMP, EMP, DropConnect, Dropout, Ensemble
from byov.posterior.select import Rules, norm_layers, output_layer, select

PLACES = ("all", "norm+output", "norm", "output")


@dataclass(frozen=True)
class Row:
    """One family on one part of a network.

    `base ** exponent` is the exact effective ensemble size: the number of networks that the family can draw. Both are
    None for a Gaussian, which draws from a continuum.
    """

    family: str
    on: str
    parameters: int
    overhead: float
    base: int | None
    exponent: int | None

    @property
    def percent(self) -> float:
        return 100.0 * self.overhead

    @property
    def ensemble_size(self) -> str:
        """Return the effective size as a power, such as 5^21; ∞ for a continuum."""
        if self.base is None or self.exponent is None:
            return "∞"
        return f"{self.base}^{self.exponent:,}" if self.exponent > 1 else str(self.base**self.exponent)


def overhead(net: nn.Module, k: int = 5, on: str | None = None) -> list[Row]:
    """Count the parameters of `net` under every family with K = `k`, the plain network first.

    Nothing is allocated: the families are built on the meta device, where `net` may be too.

    Args:
        net: any network; tied parameters count once.
        k: the number of components of EMP, ECMP and the explicit ensemble.
        on: where every family is placed: "all" trainable parameters, "norm+output", "norm" or "output" layers, or the
            parameters whose names match a glob, such as "*lora_*" for the adapters of a PEFT network. The default
            follows the paper: EMP and ECMP on norm+output (and, in separate rows, on the norms alone), the others on
            all.
    """
    if on is not None and on not in PLACES and "*" not in on:
        named = f"{', '.join(PLACES[:-1])} or {PLACES[-1]}"
        raise ValueError(f"A posterior is placed on a glob such as '*lora_*', {named}, not {on!r}.")
    found = list(occurrences(net))
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p, _ in found):
        raise ValueError("The network has lazy parameters without a shape: call it once before counting.")
    families: list[Family] = [Gaussian(), Dropout(0.5), DropConnect(0.5), EMP(k), ECMP(k), Ensemble(k)]
    total = sum(p.numel() for p, _ in found)
    rows = [Row("deterministic", "–", total, 0.0, 1, 1)]
    has_norms = any(norm_layers(name, module, p) for p, places in found for name, module in places)
    for family in families:
        patches = isinstance(family, EMP | ECMP)
        places = [on] if on else ["norm+output", "norm"] if patches else ["all"]
        rows += [_row(net, total, family, place) for place in places if on or place != "norm" or has_norms]
    return rows


def _row(net: nn.Module, total: int, family: Family, place: str) -> Row:
    ((_, layout),) = select(net, _rules(net, family, place))
    flat = torch.empty(layout.numel, device="meta")
    learned = sum(role.numel() for role in family.roles(flat, lambda: flat).values())
    parameters = total - layout.numel + learned
    base, exponent = _choices(family, layout)
    return Row(type(family).__name__, place, parameters, parameters / total - 1.0, base, exponent)


def _rules(net: nn.Module, family: Family, place: str) -> Rules:
    if place == "all":
        return family
    if place == "norm+output":  # one rule, so that a network without norms still has an output layer
        last = output_layer.bind(net)
        either: Callable[[str, nn.Module, Tensor], bool] = lambda n, m, p: norm_layers(n, m, p) or last(n, m, p)  # noqa: E731
        return {either: family}
    return {{"norm": norm_layers, "output": output_layer}.get(place, place): family}


def _choices(family: Family, layout: Layout) -> tuple[int | None, int | None]:
    """Return the number of values of each assignment Z in equation (1), and the number of assignments."""
    match family:
        case Ensemble():
            return family.k, 1
        case EMP():
            return family.k, layout.layers
        case ECMP():
            return family.k, layout.numel
        case Dropout():
            return 2, layout.units
        case DropConnect():
            return 2, sum(slot.numel for slot in layout.slots if slot.mask is not None)
    return None, None


def build(name: str, classes: int | None = None) -> nn.Module:
    """Build a network by name, on the meta device if its constructor allows that."""
    try:
        with torch.device("meta"):
            return _create(name, classes)
    except NotImplementedError:  # torchvision's RegNets compute with tensors in their constructor
        return _create(name, classes)


def _create(name: str, classes: int | None) -> nn.Module:
    from byov import models

    paper: dict[str, Callable[..., nn.Module]] = {"pyramidnet": models.pyramidnet, "table3_mlp": models.table3_mlp}
    if name in paper:
        return paper[name](classes=classes) if classes else paper[name]()
    return models.create(name, classes or _usual_classes(name))


def _usual_classes(name: str) -> int:
    """Return a network's usual number of classes: CIFAR's, otherwise that of timm's weights, otherwise ImageNet's."""
    import timm

    bare = name.rpartition(":")[2]
    if name.startswith("pyramidnet"):
        return 100
    if name.startswith(("cifar_", "vit-")):
        return 10
    if not name.startswith("torchvision:") and timm.is_model(bare):
        trained = timm.get_pretrained_cfg(bare)
        return trained.num_classes if trained is not None and trained.num_classes else 1000
    return 1000
