"""What a saved state says about itself, so that a state of another family is refused before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from byov.posterior.module import BayesianModule


@dataclass(frozen=True)
class Spec:
    """The families, a digest of the parameters each covers and of those that stay points, and the kind of prior."""

    families: tuple[str, ...]
    covers: tuple[str, ...]
    prior: str

    @classmethod
    def of(cls, model: BayesianModule) -> Spec:
        layouts = [[(slot.name, slot.shape) for slot in factor.layout.slots] for factor in model.factors]
        layouts.append([(name, tuple(point.shape)) for name, point in model.points()])
        return cls(
            families=tuple(repr(factor.family) for factor in model.factors),
            covers=tuple(sha256(repr(layout).encode()).hexdigest()[:16] for layout in layouts),
            prior=type(model.prior).__name__,
        )

    def encode(self) -> Tensor:
        """As bytes in a tensor: safetensors and `weights_only` loading take it."""
        return torch.tensor(list(json.dumps(self.__dict__).encode()), dtype=torch.uint8)

    @classmethod
    def decode(cls, state: Tensor) -> Spec:
        raw = json.loads(bytes(state.tolist()))
        return cls(tuple(raw["families"]), tuple(raw["covers"]), raw["prior"])

    def check(self, state: Mapping[str, Any], prefix: str) -> None:
        """Raise unless `state` was saved by a model like this one."""
        if f"{prefix}_extra_state" not in state:
            raise ValueError(
                "This is not the state of a BayesianModule: load a plain network's state before bayesianize, "
                "and its weights become the means."
            )
        other = Spec.decode(state[f"{prefix}_extra_state"])
        if other.families != self.families:
            raise ValueError(f"The state is of {_list(other.families)}, the model of {_list(self.families)}.")
        if other.covers != self.covers:
            raise ValueError("The state is of a network with other parameters, or of other rules, than the model's.")
        if other.prior != self.prior:
            raise ValueError(f"The state was saved with a {other.prior} prior, the model has a {self.prior}.")


def _list(families: tuple[str, ...]) -> str:
    return " and ".join(families)
