"""The tensors of a posterior under the network's own keys.

fc.weight             the mean, under the plain network's key
fc.weight.log_var     any other role of the family, here log σ²; for mixtures `components` (K, …)
bn.running_mean       a point or a buffer; for an explicit ensemble the average, next to `bn.running_mean.components`
byov.0.logits         a role of the first factor that is not one number per weight
byov.prior.std        a tensor of the prior
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from byov.posterior.factor import Factor
from byov.posterior.layout import Layout
from byov.posterior.module import BayesianModule

OWN = "byov."
PRIOR = f"{OWN}prior."


class Place(NamedTuple):
    """The position of a tensor of the model's state in the file: whole under one name, or split by a layout."""

    key: str
    name: str
    layout: Layout | None = None

    def names(self) -> list[str]:
        """Return the names of the tensor's parts in the file."""
        return [self.name] if self.layout is None else [_joined(slot.name, self.name) for slot in self.layout.slots]


def _joined(name: str, role: str) -> str:
    return f"{name}.{role}" if role else name


def places(model: BayesianModule) -> Iterator[Place]:
    """Yield the place of each tensor of the model's state; the role `mean` uses the network's own key."""
    state = model.state_dict()
    for key in state:
        if key.startswith("net."):
            yield Place(key, key.removeprefix("net."))
        elif key.startswith("prior."):
            yield Place(key, OWN + key)
    for i, factor in enumerate(model.factors):
        for role, value in factor.roles.items():
            flat = value.ndim > 0 and value.shape[-1] == factor.layout.numel
            if flat:
                yield Place(f"q.{i}.{role}", "" if role == "mean" else role, factor.layout)
            else:
                yield Place(f"q.{i}.{role}", f"{OWN}{i}.{role}")
        for name in factor.buffer_names:
            yield Place(f"q.{i}.{name.replace('.', '/')}", f"{name}.components")


@torch.no_grad()
def tensors_of(model: BayesianModule) -> dict[str, Tensor]:
    """Return all tensors of a posterior by their names in the file; tied ones appear under each of their names."""
    state, found = model.state_dict(), dict[str, Tensor]()
    for place in places(model):
        value = state[place.key]
        parts = [value] if place.layout is None else list(place.layout.split(value).values())
        for name, part in zip(place.names(), parts, strict=True):
            if name in found:
                raise ValueError(f"The network's tensor {name} has a name that the posterior needs: rename it.")
            found[name] = part
    for factor in model.factors:
        for name, value in _means(factor).items():
            found.setdefault(name, value)
    return found


def _means(factor: Factor) -> dict[str, Tensor]:
    named = factor.layout.split(factor.roles["mean"] if "mean" in factor.roles else factor.flat_mean())
    return {**factor.layout.with_ties(named), **factor.mean_buffers()}


def load_tensors(model: BayesianModule, tensors: Mapping[str, Tensor]) -> None:
    """Load a posterior's tensors into a model, in their own dtypes; raise if they belong to another network."""
    own, state = model.state_dict(keep_vars=True), dict[str, Tensor]()
    for place in places(model):
        if missing := [name for name in place.names() if name not in tensors]:
            raise ValueError(f"{missing[0]} is missing")
        parts = [tensors[name] for name in place.names()]
        if place.layout is None:
            value, like = parts[0], own[place.key]
        else:
            like = own[place.key]
            shapes = [(*like.shape[:-1], *slot.shape) for slot in place.layout.slots]
            for name, part, shape in zip(place.names(), parts, shapes, strict=True):
                if part.shape != shape:
                    raise ValueError(f"{name} is {tuple(part.shape)} in the folder, not {shape}")
            value = torch.cat([part.reshape(*like.shape[:-1], -1) for part in parts], -1)
        if value.shape != like.shape or value.is_floating_point() != like.is_floating_point():
            raise ValueError(f"{place.name} is {tuple(value.shape)} in the folder, not {tuple(like.shape)}")
        state[place.key] = value
    known = {name for place in places(model) for name in place.names()}
    known |= {name for factor in model.factors for name in _means(factor)}
    if extra := sorted(set(tensors) - known):
        raise ValueError(f"it has no {extra[0]}")
    for key, value in state.items():
        own[key].data = own[key].data.to(value.dtype)
    model.load_state_dict({**state, "_extra_state": model.get_extra_state()})
