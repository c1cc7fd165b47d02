"""The metrics as pure functions of tensors.

`probs` is (N, C), each row on the simplex, usually the mean over draws of the posterior predictive, never the mean of
per-draw metrics; `labels` is (N,), integers in 0..C−1 of any integer dtype. Everything is computed and returned in
float64, on the device of its input; a number over all samples is a scalar tensor. Bad input raises a `ValueError` with
a one-sentence reason.
"""

from byov.metrics.functional.calibration import (
    ReliabilityBins,
    adaptive_calibration_error,
    calibration_error,
    calibration_floor,
    reliability_diagram,
)
from byov.metrics.functional.corruption import (
    corruption_error,
    mean_corruption_error,
    relative_corruption_error,
    relative_mean_corruption_error,
)
from byov.metrics.functional.scores import (
    BrierParts,
    accuracy,
    brier_decomposition,
    brier_score,
    log_predictive_density,
    nll,
    rmse,
)
from byov.metrics.functional.uncertainty import (
    RiskCoverageCurve,
    aurc,
    entropy,
    fpr95,
    fpr_at_tpr,
    mutual_information,
    ood_auroc,
    r_auroc,
    recall_at_1,
    risk_coverage,
)

__all__ = [
    "BrierParts",
    "ReliabilityBins",
    "RiskCoverageCurve",
    "accuracy",
    "adaptive_calibration_error",
    "aurc",
    "brier_decomposition",
    "brier_score",
    "calibration_error",
    "calibration_floor",
    "corruption_error",
    "entropy",
    "fpr95",
    "fpr_at_tpr",
    "log_predictive_density",
    "mean_corruption_error",
    "mutual_information",
    "nll",
    "ood_auroc",
    "r_auroc",
    "recall_at_1",
    "relative_corruption_error",
    "relative_mean_corruption_error",
    "reliability_diagram",
    "risk_coverage",
    "rmse",
]
