"""How a prediction is made: how many draws, in which way, of which kind of values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from byov.prediction.result import Task

Strategy = Literal["auto", "loop", "vmap"]


@dataclass(frozen=True)
class Settings:
    """Those arguments of `byov.predict` that have nothing to do with the model or the inputs."""

    samples: int
    strategy: Strategy
    tolerance: float | None
    task: Task
    precision: float | None
    keep: bool

    def __post_init__(self) -> None:
        if not isinstance(self.samples, int) or isinstance(self.samples, bool) or self.samples < 1:
            raise ValueError(f"predict needs at least one draw, not samples={self.samples!r}.")
        if self.strategy not in get_args(Strategy):
            raise ValueError(f"A strategy is 'auto', 'loop' or 'vmap', not {self.strategy!r}.")
        if self.task not in get_args(Task):
            raise ValueError(f"A task is 'classification' or 'regression', not {self.task!r}.")
        if self.tolerance is not None and not self.tolerance > 0:
            raise ValueError(f"A tolerance is above 0, not {self.tolerance}.")
        if self.precision is not None and not (self.task == "regression" and self.precision > 0):
            raise ValueError("An output precision is above 0 and belongs to a regression.")
        if self.keep and self.tolerance is not None:
            raise ValueError("Draws cannot be kept with a tolerance: inputs take different numbers of them.")
