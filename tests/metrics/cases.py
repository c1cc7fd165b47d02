"""One case per shell: how to build it, the arguments of each sample or group of samples, and its function."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from byov import metrics
from byov.metrics import functional as F

from .inputs import random_problem

SAMPLES, CLASSES = 90, 4
PROBS, LABELS = random_problem(0, SAMPLES, CLASSES, skew=0.5)
ENTROPY = F.entropy(PROBS).mul(4).round()  # with ties
OOD = LABELS == 0
DRAWS = torch.randn(7, SAMPLES, 2, generator=torch.Generator().manual_seed(1))
TARGET = torch.randn(SAMPLES, 2, generator=torch.Generator().manual_seed(2))
EMBEDDINGS = torch.randn(SAMPLES, 3, generator=torch.Generator().manual_seed(3)) + torch.eye(4, 3)[LABELS]
BASELINE = {"fog": [0.5, 0.9], "snow": [0.4, 0.3]}
KINDS = [None, ("fog", 1), ("fog", 2), ("snow", 1), ("snow", 2)]
"""Sample i is clean or belongs to KINDS[i % 5]."""


@dataclass(frozen=True)
class Case:
    build: Callable[[], Metric]
    batch: Callable[[Tensor], Iterable[tuple[Any, ...]]]
    """Sample indices to the arguments of one or more updates."""
    expected: Callable[[], Any]


def classified(index: Tensor) -> Iterable[tuple[Any, ...]]:
    yield PROBS[index], LABELS[index]


def scored(index: Tensor) -> Iterable[tuple[Any, ...]]:
    yield PROBS[index], LABELS[index], ENTROPY[index]


def corrupted(index: Tensor, clean: bool = True) -> Iterable[tuple[Any, ...]]:
    for kind in KINDS if clean else KINDS[1:]:
        mine = index[index % 5 == KINDS.index(kind)]
        if len(mine):
            yield PROBS[mine], LABELS[mine], *(kind or ())


def corruption_errors() -> tuple[dict[str, list[float]], float]:
    """The top-1 errors of each kind, and of the clean samples."""
    error = [1 - F.accuracy(PROBS[k::5], LABELS[k::5]).item() for k in range(5)]
    return {"fog": error[1:3], "snow": error[3:5]}, error[0]


def of_labels(build: Callable[[], Metric], function: Callable[..., Any], *settings: Any) -> Case:
    """A metric of forecasts and labels alone."""
    return Case(build, classified, lambda: function(PROBS, LABELS, *settings))


def of_corruptions(build: Callable[..., Metric], function: Callable[..., Any]) -> Case:
    return Case(
        lambda: build(BASELINE), lambda i: corrupted(i, clean=False), lambda: function(corruption_errors()[0], BASELINE)
    )


def of_clean_and_corrupted(build: Callable[..., Metric], function: Callable[..., Any], denominator: str) -> Case:
    return Case(
        lambda: build(BASELINE, 0.2, denominator),
        corrupted,
        lambda: function(*corruption_errors(), BASELINE, 0.2, denominator),
    )


CASES = {
    "accuracy": of_labels(metrics.Accuracy, F.accuracy),
    "top-3": of_labels(lambda: metrics.Accuracy(top_k=3), F.accuracy, 3),
    "nll": of_labels(metrics.NLL, F.nll),
    "log nll": Case(
        lambda: metrics.NLL(log_input=True), lambda i: [(PROBS[i].log(), LABELS[i])], lambda: F.nll(PROBS, LABELS)
    ),
    "ece": of_labels(metrics.CalibrationError, F.calibration_error),
    "mce": of_labels(lambda: metrics.CalibrationError(20, "max", min_count=6), F.calibration_error, 20, "max", 6),
    "adaptive": of_labels(lambda: metrics.AdaptiveCalibrationError(7), F.adaptive_calibration_error, 7),
    "diagram": of_labels(lambda: metrics.ReliabilityDiagram(8), F.reliability_diagram, 8),
    "floor": Case(metrics.CalibrationFloor, classified, lambda: F.calibration_floor(PROBS)),
    "brier": of_labels(metrics.Brier, F.brier_score),
    "parts": of_labels(lambda: metrics.BrierDecomposition(CLASSES), F.brier_decomposition),
    "aurc of confidence": of_labels(metrics.AURC, F.aurc),
    "aurc": Case(metrics.AURC, scored, lambda: F.aurc(PROBS, LABELS, ENTROPY)),
    "risk": Case(metrics.RiskCoverage, scored, lambda: F.risk_coverage(PROBS, LABELS, ENTROPY)),
    "auroc": Case(metrics.OODAUROC, lambda i: [(ENTROPY[i], OOD[i])], lambda: F.ood_auroc(ENTROPY[~OOD], ENTROPY[OOD])),
    "fpr95": Case(
        metrics.FPR95,
        lambda i: [(ENTROPY[j], bool(OOD[j])) for j in i.split(1)],
        lambda: F.fpr95(ENTROPY[~OOD], ENTROPY[OOD]),
    ),
    "recall": Case(
        metrics.RecallAt1, lambda i: [(EMBEDDINGS[i], LABELS[i])], lambda: F.recall_at_1(EMBEDDINGS, LABELS)
    ),
    "r-auroc": Case(
        metrics.RAUROC,
        lambda i: [(ENTROPY[i], EMBEDDINGS[i], LABELS[i])],
        lambda: F.r_auroc(ENTROPY, EMBEDDINGS, LABELS),
    ),
    "rmse": Case(metrics.RMSE, lambda i: [(DRAWS[0, i], TARGET[i])], lambda: F.rmse(DRAWS[0], TARGET)),
    "density": Case(
        lambda: metrics.LogPredictiveDensity(0.5),
        lambda i: [(DRAWS[:, i], TARGET[i])],
        lambda: F.log_predictive_density(DRAWS, TARGET, 0.5),
    ),
    "ce": of_corruptions(metrics.CorruptionError, F.corruption_error),
    "mce-c": of_corruptions(metrics.MeanCorruptionError, F.mean_corruption_error),
    "rce": of_clean_and_corrupted(metrics.RelativeCorruptionError, F.relative_corruption_error, "baseline"),
    "rmce": of_clean_and_corrupted(metrics.RelativeMeanCorruptionError, F.relative_mean_corruption_error, "own"),
}


def fed(case: Case, index: Tensor, metric: Metric | None = None) -> Metric:
    """The case's metric after the samples `index`."""
    metric = metric or case.build()
    for arguments in case.batch(index):
        metric.update(*arguments)
    return metric


def assert_equal(value: Any, expected: Any) -> None:
    """Equal to rounding: the same type of container, the same dtype, 1e-12 apart."""
    assert type(value) is type(expected)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12, equal_nan=True)
