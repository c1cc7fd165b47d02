"""Select the parameters a family covers: by a glob on the name, a module class or a predicate; the first match wins."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from byov.posterior.family import Family
from byov.posterior.layout import Layout, Slot, occurrences

Predicate = Callable[[str, nn.Module, Tensor], bool]
Rule = str | type[nn.Module] | tuple[type[nn.Module], ...] | Predicate
Rules = Family | Mapping[Any, Family]

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def norm_layers(name: str, module: nn.Module, parameter: Tensor) -> bool:
    """Match the scale and shift of normalisation layers: torch's, and classes with "norm" in their name (as timm's)."""
    return isinstance(module, _NORMS) or "norm" in type(module).__name__.lower()


_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LazyLinear)


class _EndLayer(ABC):
    """Match the parameters of the first or last layer, which `bind` finds in a given network."""

    name: str

    def __repr__(self) -> str:
        return f"byov.{self.name}"

    def __call__(self, name: str, module: nn.Module, parameter: Tensor) -> bool:
        raise TypeError(f"{self} depends on the whole network: pass it to bayesianize as a rule, do not call it.")

    def bind(self, net: nn.Module) -> Predicate:
        layer = self.find(net)
        owners = set(layer.modules()) if layer is not None else set()
        return lambda name, module, parameter: module in owners

    @abstractmethod
    def find(self, net: nn.Module) -> nn.Module | None:
        """Return the layer, or None if the network has none."""


class _OutputLayer(_EndLayer):
    """Match the parameters of the layer that computes the network's output.

    This is the classifier of a timm model, or else the last registered linear or convolutional layer.
    """

    name = "output_layer"

    def find(self, net: nn.Module) -> nn.Module | None:
        get: Any = getattr(net, "get_classifier", None)
        classifier = get() if callable(get) else None
        if isinstance(classifier, nn.Module):
            return classifier
        return next((module for module in reversed(list(net.modules())) if isinstance(module, _LAYERS)), None)


class _InputLayer(_EndLayer):
    """Match the parameters of the layer that reads the network's input (patching paper, section 3.3).

    This is the first registered linear, convolutional or embedding layer.
    """

    name = "input_layer"

    def find(self, net: nn.Module) -> nn.Module | None:
        return next((module for module in net.modules() if isinstance(module, (*_LAYERS, nn.Embedding))), None)


output_layer = _OutputLayer()
"""The rule for the output layer: timm's classifier, or else the last linear or convolutional layer."""
input_layer = _InputLayer()
"""The rule for the input layer: the first linear, convolutional or embedding layer."""


def _predicate(rule: Rule, net: nn.Module) -> Predicate:
    if isinstance(rule, str):
        return lambda name, module, parameter: fnmatchcase(name, rule)
    if isinstance(rule, type) and issubclass(rule, nn.Module):
        return lambda name, module, parameter: isinstance(module, rule)
    if isinstance(rule, tuple) and rule and all(isinstance(r, type) and issubclass(r, nn.Module) for r in rule):
        return lambda name, module, parameter: isinstance(module, rule)
    if hasattr(rule, "bind"):
        return rule.bind(net)
    if callable(rule) and not isinstance(rule, type):
        return rule
    raise ValueError(
        f"A rule is a glob, a module class or a predicate (name, module, parameter) -> bool, not {rule!r}."
    )


def _nothing_matched(rule: Rule | None, net: nn.Module, names: list[str]) -> ValueError:
    shown = f"'{rule}'" if isinstance(rule, str) else getattr(rule, "__name__", repr(rule))
    if isinstance(rule, str):
        near = get_close_matches(rule, names, n=3, cutoff=0.0)
        return ValueError(f"No parameter matches the rule {shown}; the nearest names are {', '.join(near)}.")
    kinds = sorted({type(m).__name__ for m in net.modules() if m._parameters})
    return ValueError(f"No parameter matches the rule {shown}; the layers with parameters are {', '.join(kinds)}.")


def select(net: nn.Module, rules: Rules) -> list[tuple[Family, Layout]]:
    """Return the factors of q: each family with the layout of the parameters it covers.

    A bare family covers every trainable parameter; a rule in a mapping covers whatever it matches, frozen or not. Rules
    with equal families share one factor, so that an `Ensemble` named twice is still one ensemble. A tied parameter
    matches by any of its names.
    """
    found = list(occurrences(net))
    if not found:
        raise ValueError(f"{type(net).__name__} has no parameters to put a posterior on.")
    if not isinstance(rules, Mapping):
        covered = {id(p) for p, _ in found if p.requires_grad}
        if not covered:
            raise ValueError("Every parameter of the network is frozen: name those to cover in a rule.")
        choice = [(rules, (lambda name, module, parameter: id(parameter) in covered), None)]
    else:
        if not rules:
            raise ValueError("The rules are empty: give a family, or at least one rule.")
        choice = [(family, _predicate(rule, net), rule) for rule, family in rules.items()]
    for family, _, _ in choice:
        if not isinstance(family, Family) or isinstance(family, type):
            raise ValueError(f"A rule needs a family such as byov.Gaussian() or byov.EMP(5), not {family!r}.")

    matched = [False] * len(choice)
    slots: dict[Family, list[Slot]] = {family: [] for family, _, _ in choice}
    for parameter, places in found:
        hits = [any(test(name, module, parameter) for name, module in places) for _, test, _ in choice]
        matched = [m or h for m, h in zip(matched, hits, strict=True)]
        if any(hits):
            if not parameter.is_floating_point():
                raise ValueError(f"{places[0][0]} is {parameter.dtype}: a posterior needs real floating-point weights.")
            slots[choice[hits.index(True)][0]].append(Slot.of([name for name, _ in places], places[0][1], parameter))
    for hit, (_, _, rule) in zip(matched, choice, strict=True):
        if not hit:
            raise _nothing_matched(rule, net, [name for _, places in found for name, _ in places])
    factors = [(family, Layout(tuple(covers))) for family, covers in slots.items() if covers]
    tensors = {places[0][0]: p for p, places in found}
    for family, layout in factors:
        kinds = {(tensors[s.name].dtype, tensors[s.name].device) for s in layout.slots}
        if len(kinds) > 1:
            raise ValueError(
                f"{type(family).__name__} would cover parameters of several dtypes or devices in one flat tensor:"
                " convert the network to one with .to(…), or give each a rule with its own family."
            )
    return factors
