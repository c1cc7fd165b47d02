"""BYOV: BYOL with a posterior over the student's weights, the choice of these weights, and the paper's three priors."""

from __future__ import annotations

from typing import Literal, get_args

from torch import nn

from byov.posterior import Family, Gaussian, Normal, TeacherMean, TeacherNormal, bayesianize, norm_layers
from byov.posterior.prior import Prior
from byov.posterior.select import Rules
from byov.ssl.byol import BYOL
from byov.ssl.heads import Student
from byov.ssl.views import Views

Coverage = Literal["all", "no-norm-no-conv", "linear-only", "norm"]
PriorName = Literal["normal", "teacher-mean", "teacher-normal"]

_CONVOLUTION = nn.modules.conv._ConvNd  # transposed ones too


def coverage(name: Coverage, family: Family | float = -10.0) -> Rules:
    """Choose which weights are Bayesian: all (the paper's best), or one of the partial variants of its Table 1.

    "norm" covers normalisation layers only, as in the patching paper. A number stands for `Gaussian(log_var=number)`.
    """
    family = Gaussian(family) if isinstance(family, int | float) else family
    if name == "all":
        return family
    if name == "no-norm-no-conv":
        return {(lambda n, module, p: not (norm_layers(n, module, p) or isinstance(module, _CONVOLUTION))): family}
    if name == "linear-only":
        return {(nn.Linear, nn.MultiheadAttention): family}
    if name == "norm":
        return {norm_layers: family}
    raise ValueError(f"A coverage is one of {', '.join(get_args(Coverage))}, not {name!r}.")


def prior_by_name(name: PriorName, std: float = 1.0) -> Prior:
    """Create one of the paper's three priors: N(0, I), N(μ_T, I) or N(μ_T, Σ_T)."""
    if name == "normal":
        return Normal(0.0, std)
    if name == "teacher-mean":
        return TeacherMean(std=std)
    if name == "teacher-normal":
        return TeacherNormal()
    raise ValueError(f"A prior is one of {', '.join(get_args(PriorName))}, not {name!r}.")


class BYOV(BYOL):
    """BYOL with a posterior over the student: loss + β·KL(q ‖ prior)/N, minimised.

    The paper's equation 2 prints a minus; its text says minimise. One draw per minibatch, the same for both views.
    """

    def __init__(
        self,
        student: Student,
        views: Views,
        rules: Rules,
        prior: Prior,
        kl_scale: float,
        tau_base: float = 0.99,
        shared_draw: bool = False,
        tau_end: float = 1.0,
    ) -> None:
        posterior = bayesianize(student, rules, prior=prior, shared_draw=shared_draw)
        super().__init__(posterior, views, tau_base, tau_end, kl_scale)
