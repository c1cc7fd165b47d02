"""The base class of self-supervised objectives: all that differs between the methods, one file each.

An objective works with any student: a plain network, or one draw from a posterior over its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byov.posterior.family import precise

P = ParamSpec("P")
Pair = tuple[Tensor, Tensor]
Heads = tuple[nn.Module, nn.Module | None]
"""A projector, and a predictor after it or None."""
Student = Callable[..., tuple[Tensor, ...]]
"""Called with two views: `byov.ssl.Student`, or a posterior over one."""
Teacher = Callable[[Tensor, Tensor], Pair]
"""Called with two views: returns the projections by the student's moving average, without gradients."""


class Objective(nn.Module):
    """The loss of two views, with its heads, whether it needs a teacher, and any state kept between steps.

    Such state (a centre, a queue) must be a buffer, so that it is saved in checkpoints and restored on resuming.
    """

    title: str
    """The method's name in its paper."""
    teacher: bool = False
    """Whether it uses the student's moving average."""
    additive: bool = False
    """Whether the loss is a mean over images, so that a batch can be split into parts (`train.accumulate`)."""
    hidden: int
    outputs: int
    """Widths of the heads in the paper."""
    tau_base: float = 0.99
    """Initial value of the teacher's τ."""
    temperature: float | None = None
    weights: tuple[float, ...] | None = None
    """Temperature and weights of the loss in the paper; None if the loss has none."""
    extent: str
    """The range of the loss in words, for comparison with the cost of the posterior's noise."""

    def __init__(
        self, outputs: int = 0, temperature: float | None = None, weights: tuple[float, ...] | None = None
    ) -> None:
        """Override the paper's settings; `outputs` is the width of the projections."""
        super().__init__()
        if temperature is not None:
            if self.temperature is None:
                raise ValueError(f"The loss of {self.title} has no temperature: leave out ssl.temperature.")
            if not temperature > 0:
                raise ValueError(f"A temperature is above 0, not {temperature}.")
            self.temperature = temperature
        if weights is not None:
            count = len(self.weights or ())
            if len(weights) != count:
                raise ValueError(f"The loss of {self.title} has {count} weights: ssl.weights cannot be {weights}.")
            self.weights = weights

    @classmethod
    def heads(cls, features: int, hidden: int, outputs: int, norms: bool) -> Heads:
        """Build the heads for an encoder with this many features; `norms` is True if the encoder has BatchNorm."""
        raise NotImplementedError

    def forward(self, student: Student, teacher: Teacher, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, and projections (N, D) whose spread is used to detect a collapse.

        Call the student only once, so that both views use the same draw.
        """
        raise NotImplementedError

    def after(self, step: int, total: int) -> None:
        """Update any state after the optimizer's step number `step` (from 1) of `total`; does nothing by default."""


def in_float32(loss: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Decorate a loss to compute in float32 or better: products of many similarities are meaningless in bfloat16."""

    @wraps(loss)
    def computed(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        given = [precise(arg) if isinstance(arg, Tensor) else arg for arg in args]
        place = next(arg.device.type for arg in args if isinstance(arg, Tensor))
        with torch.autocast(place, enabled=False):
            return loss(*given, **kwargs)  # type: ignore[arg-type]

    return computed


def spread(projections: Tensor) -> Tensor:
    """Average the std of the normalised projections over coordinates, relative to the 1/√d of a uniform sphere."""
    unit = F.normalize(projections.float(), dim=-1)
    return unit.std(0).mean() * unit.shape[-1] ** 0.5
