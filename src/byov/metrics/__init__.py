"""Metrics of predictions: `byov.metrics.functional` holds the mathematics; the classes here apply it over batches.

Each class is a `torchmetrics.Metric`: `update` per batch, `compute` at the end, states reduced over processes. For any
split into batches, a class gives the same value as its function on all data, and it has the same arguments.

Example:
    >>> metric = CalibrationError(bins=10)
    >>> metric.update(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
    >>> metric.update(torch.tensor([[0.8, 0.2]]), torch.tensor([1]))
    >>> round(metric.compute().item(), 6)  # (0.1 + 0.8) / 2
    0.45
"""

from byov.metrics import functional
from byov.metrics.corruption import (
    CorruptionError,
    MeanCorruptionError,
    RelativeCorruptionError,
    RelativeMeanCorruptionError,
)
from byov.metrics.scores import (
    NLL,
    RMSE,
    Accuracy,
    AdaptiveCalibrationError,
    Brier,
    BrierDecomposition,
    CalibrationError,
    CalibrationFloor,
    LogPredictiveDensity,
    ReliabilityDiagram,
)
from byov.metrics.uncertainty import AURC, FPR95, OODAUROC, RAUROC, RecallAt1, RiskCoverage

__all__ = [
    "AURC",
    "FPR95",
    "NLL",
    "OODAUROC",
    "RAUROC",
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
    "RecallAt1",
    "RelativeCorruptionError",
    "RelativeMeanCorruptionError",
    "ReliabilityDiagram",
    "RiskCoverage",
    "functional",
]
