"""byov: bring your own variance. Any PyTorch model gets a posterior over its weights."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from byov.version import __version__ as __version__

if TYPE_CHECKING:
    from byov.evaluation.opened_run import open as open
    from byov.evaluation.representation import representation_uncertainty
    from byov.posterior import (
        ECMP,
        EMA,
        EMP,
        BayesianModule,
        DropConnect,
        Dropout,
        Ensemble,
        FullGaussian,
        Gaussian,
        KroneckerGaussian,
        Normal,
        Shared,
        TeacherMean,
        TeacherNormal,
        bayesianize,
        beta,
        elbo,
        hold_apart,
        input_layer,
        kl_scale,
        norm_layers,
        output_layer,
        parameter_groups,
    )
    from byov.posthoc import (
        SWAG,
        Conformal,
        Temperature,
        conformal,
        from_checkpoints,
        laplace,
        temperature,
    )
    from byov.prediction import Prediction, Serving, predict
    from byov.pruning import prune
    from byov.sharing import export, load
    from byov.ssl.features import features
    from byov.train.fit import fit

_ELSEWHERE = {
    **dict.fromkeys(("Prediction", "Serving", "predict"), "byov.prediction"),
    **dict.fromkeys(
        ("SWAG", "Conformal", "Temperature", "conformal", "from_checkpoints", "laplace", "temperature"), "byov.posthoc"
    ),
    "prune": "byov.pruning",
    **dict.fromkeys(("export", "load"), "byov.sharing"),
    "check": "byov.evaluation.check",
    "features": "byov.ssl.features",
    "fit": "byov.train.fit",
    "open": "byov.evaluation.opened_run",
    "representation_uncertainty": "byov.evaluation.representation",
}
"""The module of each public name that is not in `byov.posterior`. Imports are lazy: `byov --help` needs no torch, and a
posterior needs neither timm nor torchvision. `open` is not in `__all__`: a star import would hide Python's."""

_PARTS = (
    "data",
    "evaluation",
    "hf",
    "lightning",
    "metrics",
    "models",
    "overhead",
    "posterior",
    "posthoc",
    "prediction",
    "pruning",
    "runs",
    "sharing",
    "ssl",
    "train",
)
"""Subpackages and modules available as `byov.NAME` without a separate import."""


def __getattr__(name: str) -> Any:
    if name in __all__ or name in _ELSEWHERE:
        found = globals()[name] = getattr(import_module(_ELSEWHERE.get(name, "byov.posterior")), name)
        return found
    if name in _PARTS:
        return import_module(f"byov.{name}")
    raise AttributeError(f"module 'byov' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ELSEWHERE, *_PARTS})


__all__ = [
    "ECMP",
    "EMA",
    "EMP",
    "SWAG",
    "BayesianModule",
    "Conformal",
    "DropConnect",
    "Dropout",
    "Ensemble",
    "FullGaussian",
    "Gaussian",
    "KroneckerGaussian",
    "Normal",
    "Prediction",
    "Serving",
    "Shared",
    "TeacherMean",
    "TeacherNormal",
    "Temperature",
    "bayesianize",
    "beta",
    "check",
    "conformal",
    "elbo",
    "export",
    "features",
    "fit",
    "from_checkpoints",
    "hold_apart",
    "input_layer",
    "kl_scale",
    "laplace",
    "load",
    "norm_layers",
    "output_layer",
    "parameter_groups",
    "predict",
    "prune",
    "representation_uncertainty",
    "temperature",
]
