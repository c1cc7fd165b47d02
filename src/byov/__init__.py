"""byov: bring your own variance. Any PyTorch model gets a posterior over its weights."""

from importlib import import_module
from typing import Any

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
    elbo,
    hold_apart,
    kl_scale,
    norm_layers,
    output_layer,
    parameter_groups,
)
from byov.prediction import Prediction, Serving, predict
from byov.pruning import prune

__version__ = "0.1.0"

_LATER = {
    "check": "byov.evaluation.check",
    "features": "byov.ssl.features",
    "representation_uncertainty": "byov.evaluation.representation",
}
"""Names whose modules need timm and torchvision: imported when asked for, so that `import byov` stays light."""

_PARTS = ("data", "evaluation", "metrics", "models", "overhead", "pruning", "runs", "ssl", "train")
"""Parts that `byov.NAME` finds without an import of their own."""


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    if name in _PARTS:
        return import_module(f"byov.{name}")
    raise AttributeError(f"module 'byov' has no attribute {name!r}")


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
    "Serving",
    "TeacherMean",
    "TeacherNormal",
    "bayesianize",
    "beta",
    "check",
    "elbo",
    "features",
    "hold_apart",
    "kl_scale",
    "norm_layers",
    "output_layer",
    "parameter_groups",
    "predict",
    "prune",
    "representation_uncertainty",
]
