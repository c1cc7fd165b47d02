"""q(θ): a distribution over the parameters of a network."""

from byov.posterior.bayesianize import bayesianize
from byov.posterior.correlated import FullGaussian, KroneckerGaussian
from byov.posterior.family import Family
from byov.posterior.gaussian import Gaussian
from byov.posterior.mixture import ECMP, EMP, DropConnect, Dropout, Ensemble
from byov.posterior.module import BayesianModule
from byov.posterior.objective import (
    beta,
    elbo,
    hold_apart,
    kl_scale,
    log_var_rate,
    parameter_groups,
    usual_beta,
    usual_n,
)
from byov.posterior.prior import EMA, Normal, Prior, TeacherMean, TeacherNormal
from byov.posterior.select import input_layer, norm_layers, output_layer
from byov.posterior.shared import Shared

__all__ = [
    "ECMP",
    "EMA",
    "EMP",
    "BayesianModule",
    "DropConnect",
    "Dropout",
    "Ensemble",
    "Family",
    "FullGaussian",
    "Gaussian",
    "KroneckerGaussian",
    "Normal",
    "Prior",
    "Shared",
    "TeacherMean",
    "TeacherNormal",
    "bayesianize",
    "beta",
    "elbo",
    "hold_apart",
    "input_layer",
    "kl_scale",
    "log_var_rate",
    "norm_layers",
    "output_layer",
    "parameter_groups",
    "usual_beta",
    "usual_n",
]
