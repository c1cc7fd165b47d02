"""Metrics of a prediction: `byov.metrics.functional` holds the mathematics, the classes here stream it over batches.

Each class is a `torchmetrics.Metric`: `update` per batch, `compute` at the end, states reduced over processes. A class
over any split into batches gives the number of its function on the whole.
"""

from byov.metrics import functional
from byov.metrics.brier import Brier, BrierDecomposition
from byov.metrics.calibration import (
    AdaptiveCalibrationError,
    CalibrationError,
    CalibrationFloor,
    ReliabilityDiagram,
)
from byov.metrics.corruption import (
    CorruptionError,
    MeanCorruptionError,
    RelativeCorruptionError,
    RelativeMeanCorruptionError,
)
from byov.metrics.ood import FPR95, OODAUROC
from byov.metrics.regression import RMSE, LogPredictiveDensity
from byov.metrics.scores import NLL, Accuracy
from byov.metrics.selective import AURC, RiskCoverage

__all__ = [
    "AURC",
    "FPR95",
    "NLL",
    "OODAUROC",
    "RMSE",
    "Accuracy",
    "AdaptiveCalibrationError",
    "Brier",
    "BrierDecomposition",
    "CalibrationError",
    "CalibrationFloor",
    "CorruptionError",
    "LogPredictiveDensity",
    "MeanCorruptionError",
    "RelativeCorruptionError",
    "RelativeMeanCorruptionError",
    "ReliabilityDiagram",
    "RiskCoverage",
    "functional",
]
