"""Self-supervised learning: views, heads, objectives with or without a posterior, and probes of the features."""

from byov.ssl.byol import BYOL, regression_loss
from byov.ssl.byov import BYOV, coverage
from byov.ssl.features import features
from byov.ssl.heads import Student, head
from byov.ssl.learner import Learner
from byov.ssl.objective import Objective
from byov.ssl.probe import Probe, ProbeSettings, evaluate_probe
from byov.ssl.registry import OBJECTIVES
from byov.ssl.views import View, Views

__all__ = [
    "BYOL",
    "BYOV",
    "OBJECTIVES",
    "Learner",
    "Objective",
    "Probe",
    "ProbeSettings",
    "Student",
    "View",
    "Views",
    "coverage",
    "evaluate_probe",
    "features",
    "head",
    "regression_loss",
]
