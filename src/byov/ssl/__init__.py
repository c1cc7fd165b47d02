"""Learning without labels: views, heads, BYOL and BYOV, and probes of what was learned."""

from byov.ssl.byol import BYOL, regression_loss
from byov.ssl.byov import BYOV, coverage
from byov.ssl.features import features
from byov.ssl.heads import Student, head
from byov.ssl.probe import Probe, ProbeSettings, evaluate_probe
from byov.ssl.views import View, Views

__all__ = [
    "BYOL",
    "BYOV",
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
