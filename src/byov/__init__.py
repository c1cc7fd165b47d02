"""byov: bring your own variance. Any PyTorch model gets a posterior over its weights."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from byov.version import __version__ as __version__

if TYPE_CHECKING:
    from byov.evaluation.opened import open as open
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
    from byov.sharing import export, load
    from byov.ssl.features import features

_ELSEWHERE = {
    **dict.fromkeys(("Prediction", "Serving", "predict"), "byov.prediction"),
    "prune": "byov.pruning",
    **dict.fromkeys(("export", "load"), "byov.sharing"),
    "check": "byov.evaluation.check",
    "features": "byov.ssl.features",
    "open": "byov.evaluation.opened",
    "representation_uncertainty": "byov.evaluation.representation",
}
"""Where a public name is, if not in `byov.posterior`. All are imported when they are asked for: `byov --help` needs no
torch, and a posterior neither timm nor torchvision. `open` is not in `__all__`: a star import would hide Python's."""

_PARTS = (
    "data",
    "evaluation",
    "metrics",
    "models",
    "overhead",
    "posterior",
    "prediction",
    "pruning",
    "runs",
    "sharing",
    "ssl",
    "train",
)
"""Parts that `byov.NAME` finds without an import of their own."""


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
    "export",
    "features",
    "hold_apart",
    "kl_scale",
    "load",
    "norm_layers",
    "output_layer",
    "parameter_groups",
    "predict",
    "prune",
    "representation_uncertainty",
]
