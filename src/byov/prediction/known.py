"""What one prediction finds out about a model, for those after it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Generator, Tensor, nn

from byov.posterior.family import Noise
from byov.posterior.module import BayesianModule
from byov.prediction.captured import Captured
from byov.prediction.draws import Draws
from byov.prediction.graphed import Graphed
from byov.prediction.handover import Handover
from byov.prediction.inputs import Batch, device_of
from byov.prediction.look import Look, kind_of
from byov.prediction.state import compiled, holds_parameters, modules_of, place

SHAPES = 64
"""Of so many kinds of batches something is known at a time: who has more has no two alike."""


@dataclass
class Rows:
    """Noise and weights of a number of draws, captured: a hundred noises take the host a hundred launches else."""

    count: int = 0
    captured: Captured[tuple[list[Noise], list[dict[str, Tensor]]]] | None = None
    possible: bool = True


class Known:
    """A model's modules and where its posterior lies; and what was seen of its passes, whose numbers it never keeps."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._walk()
        self.fresh = True
        """Whether the modules have just been gone through: a pass may change them."""
        self.again = False
        """Whether this call draws from the generator of the one before: else a graph would be bound to one in vain."""
        self.device = device_of(model)
        self.handover = Handover(model.net) if isinstance(model, BayesianModule) else None
        self.holds_parameters = holds_parameters(self.net)
        self.sleep = self.holds_parameters  # else the first call is one to be seen
        self.graph: Graphed | None = None
        self.rows = Rows()
        self._draws: Draws | None = None
        self._looks: dict[Any, Look] = {}
        self._places: list[Any] | None = None
        self._calls = 0

    @cached_property
    def compiled(self) -> bool:
        return compiled(self.net)

    @cached_property
    def suits_graphs(self) -> bool:
        return Graphed.suits(self._model, self.net)

    def draws(self, generator: Generator | None, samples: int) -> Draws | None:
        """Draws from this generator on, in the memory of those before; of a plain network none."""
        if isinstance(self._model, BayesianModule):
            if self._draws is None:
                self._draws = Draws(self._model, generator, samples)
            else:
                self.again = self._draws.generator is generator
                self._draws.renew(generator)
        return self._draws

    def look(self, x: Batch) -> Look:
        """What is known of batches like this one, in the present contexts."""
        key = kind_of(x)
        if key not in self._looks and len(self._looks) == SHAPES:
            self._looks.clear()
        return self._looks.setdefault(key, Look())

    def keep(self) -> None:
        """The call is over, and another may come."""
        self._calls += 1
        if self._places is None:
            self._places = self._now()

    def begin(self) -> None:
        """Another call has come; what the first one added to the modules, as lazy ones are, belongs to them."""
        if self._calls == 1:
            self._walk()

    def _walk(self) -> None:
        model = self._model
        self.net = modules_of(model.net if isinstance(model, BayesianModule) else model)
        self.modules = modules_of(model, self.net) if isinstance(model, BayesianModule) else self.net

    def moved(self) -> bool:
        """Whether the posterior lies elsewhere, as after `model.to`: what a draw holds of it is then another's."""
        return self._places != self._now()

    def _now(self) -> list[Any]:
        """Where the posterior's tensors are; of a plain network, which device it is on."""
        if not isinstance(self._model, BayesianModule):
            return [device_of(self._model)]
        roles = [role for factor in self._model.factors for role in factor._parameters.values()]
        return [(id(role), place(role), role.dtype) for role in roles if role is not None]
