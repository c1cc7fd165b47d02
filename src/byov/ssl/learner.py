"""A student, its teacher (if any) and the loss of one batch, for any objective and any posterior."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from byov.posterior import EMA, BayesianModule, TeacherMean, TeacherNormal
from byov.posterior.factor import Factor
from byov.ssl.heads import Student
from byov.ssl.objective import Objective, Pair, spread
from byov.ssl.views import Views
from byov.train.schedules import tau


class Step(NamedTuple):
    """The result of one step: the loss to minimise, and quantities to monitor."""

    loss: Tensor
    ssl: Tensor
    kl: Tensor
    spread: Tensor
    """Mean over dimensions of the std of the normalised projections, times √d: about 1 if healthy, 0 on collapse."""


class Learner(nn.Module):
    """Minimise loss + β·KL(q ‖ prior)/N of one batch; without a posterior this is the published method.

    There is one draw per minibatch, the same for both views. The teacher, if the objective uses one, is the EMA of the
    student's weights; for a posterior, of its mean, never of a draw. It uses batch statistics and has its own BatchNorm
    buffers. The EMA also covers the predictor, because the teacher priors read it; for these priors it is kept even
    without a teacher.
    """

    def __init__(
        self,
        student: nn.Module,
        views: Views,
        objective: Objective,
        tau_base: float = 0.99,
        tau_end: float = 1.0,
        kl_scale: float | None = None,
    ) -> None:
        """Take a student, or a posterior over one; for a posterior, `kl_scale` is the N of β·KL/N."""
        super().__init__()
        for decay in (tau_base, tau_end):
            if not 0.0 <= decay <= 1.0:
                raise ValueError(f"τ lies between 0 and 1, not at {decay}.")
        if isinstance(student, BayesianModule) and not (kl_scale is not None and kl_scale > 0):
            raise ValueError(f"kl_scale, the N of β·KL/N, must be above 0, not {kl_scale}.")
        self.student, self.views, self.tau_base, self.tau_end = student, views, tau_base, tau_end
        self.kl_scale, self.objective = kl_scale, objective
        self.ema = self._make_ema()
        # The teacher's structure and buffers; its weights are in the EMA and are None here.
        points = {id(p): None for p in self.network.parameters()}
        self.teacher = copy.deepcopy(self.network, memo=points) if objective.teacher else None
        # A module that occurs twice gets its weights only once; otherwise `functional_call` would leave them in it.
        modules = {prefix for prefix, _ in self.teacher.named_modules()} if self.teacher is not None else set()
        names = self.ema.tensors(student) if self.ema is not None else ()
        self._teacher_names = [name for name in names if name.rpartition(".")[0] in modules]
        self.register_buffer("zero", torch.zeros(()), persistent=False)

    @property
    def network(self) -> Student:
        """Return the encoder, projector and predictor."""
        return self.student.net if isinstance(self.student, BayesianModule) else self.student  # type: ignore[return-value]

    @property
    def factors(self) -> list[Factor]:
        """Return the factors of the student's posterior; an empty list without a posterior."""
        return self.student.factors if isinstance(self.student, BayesianModule) else []

    def _make_ema(self) -> EMA | None:
        # Share the prior's EMA if it has one.
        prior = self.student.prior if isinstance(self.student, BayesianModule) else None
        if isinstance(prior, TeacherMean | TeacherNormal):
            return prior.ema
        return EMA(self.student, variance=False) if self.objective.teacher else None

    def teacher_network(self) -> Student:
        """Return the teacher as a plain network: a copy with the EMA's weights and its own BatchNorm buffers."""
        if self.teacher is None or self.ema is None:
            raise ValueError(f"{self.objective.title} has no teacher: read the student.")
        net, weights = copy.deepcopy(self.teacher), self.ema.tensors(self.student)
        for name in self._teacher_names:
            prefix, _, leaf = name.rpartition(".")
            setattr(net.get_submodule(prefix), leaf, nn.Parameter(weights[name].clone(), requires_grad=False))
        return net

    @torch.no_grad()
    def teach(self, first: Tensor, second: Tensor) -> Pair:
        """Return the teacher's projections of two views."""
        assert self.teacher is not None
        assert self.ema is not None
        weights = self.ema.tensors(self.student)
        return functional_call(self.teacher, {n: weights[n] for n in self._teacher_names}, (first, second, False))

    def forward(self, images: Tensor, uniforms: Tensor, beta: Tensor) -> Step:
        """Compute the loss of one batch of images; `uniforms` from `Views.draw` determine its views."""
        first, second = (view.to(self.get_buffer("zero").dtype) for view in self.views.render(images, uniforms))
        ssl, projections = self.objective(self.student, self.teach, first, second)
        kl = self.kl()
        return Step(ssl + beta * kl, ssl.detach(), kl.detach(), spread(projections.detach()))

    def kl(self) -> Tensor:
        """Return KL/N, before β; 0 for a student without a posterior."""
        if isinstance(self.student, BayesianModule) and self.kl_scale is not None:
            return self.student.kl() / self.kl_scale
        return torch.zeros((), device=self.get_buffer("zero").device)

    def update_teacher(self, step: int, total: int) -> None:
        """Update the EMA after the optimizer's step, with τ_k = 1 − (1−τ₀)(cos(πk/K)+1)/2; `tau_end` replaces the 1.

        The state of the objective is updated too.
        """
        if self.ema is not None:
            self.ema.update(self.student, tau(step, total, self.tau_base, self.tau_end))
        self.objective.after(step, total)
