"""BYOL (Grill et al. 2020): a student predicts what its moving average, the teacher, says of another view."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from byov.posterior import EMA
from byov.ssl.heads import Student
from byov.ssl.views import Views
from byov.train.schedules import tau


class Step(NamedTuple):
    """The result of one step: the loss to minimise, and what to watch."""

    loss: Tensor
    ssl: Tensor
    kl: Tensor
    spread: Tensor
    """Mean over dimensions of the projections' std on the unit sphere, times √d: about 1 if healthy, 0 on collapse."""


def regression_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """Compute ‖p̂ − ẑ‖² = 2 − 2 cos, averaged over the batch."""
    cosine = F.cosine_similarity(prediction.float(), target.float(), dim=-1)
    return (2.0 - 2.0 * cosine).mean()


class BYOL(nn.Module):
    """The student, its teacher, and the loss of one batch: the sum over both directions, from 0 to 8.

    The teacher is the EMA of the student's weights. It runs on batch statistics, with BatchNorm buffers of its own.
    Here the student is a plain network; BYOV gives it a posterior, and everything else is the same code.
    """

    def __init__(self, student: nn.Module, views: Views, tau_base: float = 0.99, tau_end: float = 1.0) -> None:
        super().__init__()
        for decay in (tau_base, tau_end):
            if not 0.0 <= decay <= 1.0:
                raise ValueError(f"τ lies between 0 and 1, not at {decay}.")
        self.student, self.views, self.tau_base, self.tau_end = student, views, tau_base, tau_end
        self.ema = self._make_ema()
        # The teacher's structure and buffers; its weights are in the EMA, and None here.
        self.teacher = copy.deepcopy(self.network, memo={id(p): None for p in self.network.parameters()})
        # A module that occurs twice is given its weights once, or `functional_call` would leave them behind in it.
        modules = {prefix for prefix, _ in self.teacher.named_modules()}
        self._teacher_names = [name for name in self.ema.tensors(self.student) if name.rpartition(".")[0] in modules]

    @property
    def network(self) -> Student:
        """Return encoder, projector and predictor."""
        return self.student  # type: ignore[return-value]

    def _make_ema(self) -> EMA:
        return EMA(self.student, variance=False)

    def teacher_network(self) -> Student:
        """Return the teacher as a plain network: a copy with the EMA's weights and its own BatchNorm buffers."""
        net, weights = copy.deepcopy(self.teacher), self.ema.tensors(self.student)
        for name in self._teacher_names:
            prefix, _, leaf = name.rpartition(".")
            setattr(net.get_submodule(prefix), leaf, nn.Parameter(weights[name].clone(), requires_grad=False))
        return net

    def forward(self, images: Tensor, uniforms: Tensor, beta: Tensor) -> Step:
        """Compute the loss of one batch of images; `uniforms` from `Views.draw` decide its views."""
        weights = self.ema.tensors(self.student)
        first, second = (view.to(self.ema.mean(0).dtype) for view in self.views.render(images, uniforms))
        p1, p2 = self.student(first, second)
        with torch.no_grad():
            z1, z2 = functional_call(self.teacher, {n: weights[n] for n in self._teacher_names}, (first, second, False))
        ssl = regression_loss(p1, z2) + regression_loss(p2, z1)
        kl = self.kl()
        return Step(ssl + beta * kl, ssl.detach(), kl.detach(), spread(z1))

    def kl(self) -> Tensor:
        """Return what the objective adds, before β: 0 for a student without a posterior."""
        return torch.zeros((), device=self.ema.mean(0).device)

    def update_teacher(self, step: int, total: int) -> None:
        """Update the EMA after the optimizer's step, with τ_k = 1 − (1−τ₀)(cos(πk/K)+1)/2; `tau_end` replaces the 1."""
        self.ema.update(self.student, tau(step, total, self.tau_base, self.tau_end))


def spread(projections: Tensor) -> Tensor:
    """Average the std of the normalised projections over coordinates, relative to the 1/√d of a uniform sphere."""
    unit = F.normalize(projections.float(), dim=-1)
    return unit.std(0).mean() * unit.shape[-1] ** 0.5
