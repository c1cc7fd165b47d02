"""What is asked of two views of an image: all in which methods without labels differ, one file for each.

Whose answers they are does not matter to it: the student may be a plain network, or one draw of a posterior's.
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
"""A projector, and a predictor behind it where there is one."""
Student = Callable[..., tuple[Tensor, ...]]
"""Called with two views: `byov.ssl.Student`, or a posterior over one."""
Teacher = Callable[[Tensor, Tensor], Pair]
"""Called with two views: the projections of the student's moving average, without a gradient."""


class Objective(nn.Module):
    """The loss of two views, and what belongs to it: heads, a teacher or none, what it remembers from step to step.

    What is remembered (a centre, a queue) is a buffer: so it is saved, and a run that was stopped resumes with it.
    """

    title: str
    """What its paper calls it."""
    teacher: bool = False
    """Whether it asks the student's moving average, too."""
    additive: bool = False
    """Whether the loss is a mean over images, so that the parts of a batch add up to it (`train.accumulate`)."""
    hidden: int
    outputs: int
    """The widths of the heads in the paper."""
    tau_base: float = 0.99
    """Where the teacher's τ starts."""
    temperature: float | None = None
    weights: tuple[float, ...] | None = None
    """Of the paper; None where the loss has no such thing."""
    extent: str
    """Where the loss lies, in words: what the cost of the posterior's noise is to be held against."""

    def __init__(
        self, outputs: int = 0, temperature: float | None = None, weights: tuple[float, ...] | None = None
    ) -> None:
        """Take other settings than the paper's; `outputs` is how wide the projections are."""
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
        """Build what stands behind an encoder with so many features; `norms` says that it has BatchNorm itself."""
        raise NotImplementedError

    def forward(self, student: Student, teacher: Teacher, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, and projections (N, D) by whose spread a collapse is told.

        Call the student once: one draw serves both views.
        """
        raise NotImplementedError

    def after(self, step: int, total: int) -> None:
        """Do what follows the optimizer's step number `step` (from 1) of `total`; nothing, for most."""


def in_float32(loss: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Compute a loss of its tensors in float32 at least: products of many similarities mean nothing in bfloat16."""

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
