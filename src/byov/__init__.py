"""byov: bring your own variance. Any PyTorch model gets a posterior over its weights."""

from byov.posterior import (
    ECMP,
    EMA,
    EMP,
    BayesianModule,
    DropConnect,
    Dropout,
    Ensemble,
    Gaussian,
    Normal,
    TeacherMean,
    TeacherNormal,
    bayesianize,
    beta,
    kl_scale,
    norm_layers,
    output_layer,
)
from byov.prediction import Prediction, predict
from byov.ssl.features import features

__version__ = "0.1.0"

__all__ = [
    "ECMP",
    "EMA",
    "EMP",
    "BayesianModule",
    "DropConnect",
    "Dropout",
    "Ensemble",
    "Gaussian",
    "Normal",
    "Prediction",
    "TeacherMean",
    "TeacherNormal",
    "bayesianize",
    "beta",
    "features",
    "kl_scale",
    "norm_layers",
    "output_layer",
    "predict",
]
