"""BYOV: BYOL with a Gaussian posterior over the student's weights, and the EMA of its mean as the teacher."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn

from byov.posterior import EMA, Gaussian, Normal, TeacherMean, TeacherNormal, bayesianize, norm_layers
from byov.posterior.factor import Factor
from byov.posterior.prior import Prior
from byov.posterior.select import Rules
from byov.ssl.byol import BYOL
from byov.ssl.heads import Student
from byov.ssl.views import Views

Coverage = Literal["all", "no-norm-no-conv", "linear-only"]
PriorName = Literal["normal", "teacher-mean", "teacher-normal"]

_CONVOLUTION = nn.modules.conv._ConvNd  # transposed ones too


def coverage(name: Coverage, family: Gaussian | float = -10.0) -> Rules:
    """Choose the weights that are Bayesian: all (the paper's best), or its Table 1's partly Bayesian variants.

    A number stands for `Gaussian(log_var=number)`.
    """
    family = family if isinstance(family, Gaussian) else Gaussian(family)
    if name == "all":
        return family
    if name == "no-norm-no-conv":
        return {(lambda n, module, p: not (norm_layers(n, module, p) or isinstance(module, _CONVOLUTION))): family}
    if name == "linear-only":
        return {(nn.Linear, nn.MultiheadAttention): family}
    raise ValueError(f"A coverage is one of {', '.join(get_args(Coverage))}, not {name!r}.")


def prior_by_name(name: PriorName, std: float = 1.0) -> Prior:
    """Make one of the paper's three priors: N(0, I), N(μ_T, I) or N(μ_T, Σ_T)."""
    if name == "normal":
        return Normal(0.0, std)
    if name == "teacher-mean":
        return TeacherMean(std=std)
    if name == "teacher-normal":
        return TeacherNormal()
    raise ValueError(f"A prior is one of {', '.join(get_args(PriorName))}, not {name!r}.")


class BYOV(BYOL):
    """loss + β·KL(q ‖ prior)/N, minimised (the paper's equation 2 prints a minus; its text says minimise).

    One draw per minibatch, the same for both views. The teacher priors read the teacher's EMA, so it covers the
    predictor too.
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
        if not kl_scale > 0:
            raise ValueError(f"kl_scale, the N of β·KL/N, must be above 0, not {kl_scale}.")
        super().__init__(bayesianize(student, rules, prior=prior, shared_draw=shared_draw), views, tau_base, tau_end)
        self.kl_scale = kl_scale

    @property
    def factors(self) -> list[Factor]:
        """Return the factors of the student's posterior."""
        return self.student.factors  # type: ignore[return-value]

    @property
    def network(self) -> Student:
        return self.student.net  # type: ignore[return-value]

    def _make_ema(self) -> EMA:
        # Share the prior's EMA where it has one.
        prior = self.student.prior
        return prior.ema if isinstance(prior, TeacherMean | TeacherNormal) else EMA(self.student, variance=False)  # type: ignore[return-value]

    def kl(self) -> Tensor:
        return self.student.kl() / self.kl_scale  # type: ignore[operator]
