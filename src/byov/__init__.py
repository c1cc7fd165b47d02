"""byov: bring your own variance. Any PyTorch model gets a posterior over its weights."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from byov.evaluation.representation import representation_uncertainty
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
    from byov.ssl.features import features
    from byov.train.fit import fit

__version__ = "0.1.0"

_ELSEWHERE = {
    **dict.fromkeys(("Prediction", "Serving", "predict"), "byov.prediction"),
    "prune": "byov.pruning",
    "check": "byov.evaluation.check",
    "features": "byov.ssl.features",
    "fit": "byov.train.fit",
    "representation_uncertainty": "byov.evaluation.representation",
}
"""Where a public name is, if not in `byov.posterior`. All are imported when they are asked for: `byov --help` needs no
torch, and a posterior neither timm nor torchvision."""

_PARTS = (
    "data",
    "evaluation",
    "hf",
    "lightning",
    "metrics",
    "models",
    "overhead",
    "posterior",
    "prediction",
    "pruning",
    "runs",
    "ssl",
    "train",
)
"""Parts that `byov.NAME` finds without an import of their own."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        found = globals()[name] = getattr(import_module(_ELSEWHERE.get(name, "byov.posterior")), name)
        return found
    if name in _PARTS:
        return import_module(f"byov.{name}")
    raise AttributeError(f"module 'byov' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})


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
    "fit",
    "hold_apart",
    "kl_scale",
    "norm_layers",
    "output_layer",
    "parameter_groups",
    "predict",
    "prune",
    "representation_uncertainty",
]
