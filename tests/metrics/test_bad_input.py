"""Every refusal, with its sentence."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from byov import metrics
from byov.metrics import functional as F

from .cases import assert_equal

GOOD, LABELS = torch.tensor([[0.7, 0.3], [0.4, 0.6]]), torch.tensor([0, 1])
CLASSIFICATION = [
    F.accuracy, F.nll, F.calibration_error, F.adaptive_calibration_error, F.reliability_diagram, F.brier_score,
    F.brier_decomposition, F.risk_coverage, F.aurc,
]  # fmt: skip
BAD_PAIRS = {
    "must sum to one over the classes, but one row misses it by 0.1": (torch.tensor([[0.7, 0.4], [0.4, 0.6]]), LABELS),
    "must not be negative, but its smallest entry is -0.1": (torch.tensor([[1.1, -0.1], [0.4, 0.6]]), LABELS),
    "must be finite": (torch.tensor([[float("nan"), 0.4], [0.4, 0.6]]), LABELS),
    "must be finite, but it has NaN or infinite": (torch.tensor([[float("inf"), 0.4], [0.4, 0.6]]), LABELS),
    r"labels must lie in 0..1 for 2 classes, got values in 0..2": (GOOD, torch.tensor([0, 2])),
    r"labels must lie in 0..1 for 2 classes, got values in -1..0": (GOOD, torch.tensor([0, -1])),
    "labels must have an integer dtype, got torch.float32": (GOOD, LABELS.float()),
    "labels must have an integer dtype, got torch.bool": (GOOD, LABELS.bool()),
    r"labels must have shape \(2,\) to match probs, got \(3,\)": (GOOD, torch.tensor([0, 1, 1])),
    r"labels must have shape \(2,\) to match probs, got \(2, 1\)": (GOOD, LABELS[:, None]),
    r"probs must have shape \(N, C\), got \(2,\)": (torch.tensor([0.7, 0.3]), LABELS),
    r"probs is empty: its shape is \(0, 2\)": (torch.empty(0, 2), torch.empty(0, dtype=torch.int64)),
    "probs must have a floating-point dtype": (torch.eye(2, dtype=torch.int64), LABELS),
}


@pytest.mark.parametrize("function", CLASSIFICATION, ids=lambda f: f.__name__)
@pytest.mark.parametrize("sentence", BAD_PAIRS)
def test_forecasts_and_labels(function: Callable[..., Any], sentence: str) -> None:
    function(GOOD, LABELS)
    with pytest.raises(ValueError, match=sentence):
        function(*BAD_PAIRS[sentence])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("function", [*CLASSIFICATION, F.recall_at_1], ids=lambda f: f.__name__)
def test_every_integer_dtype_is_a_label(function: Callable[..., Any], dtype: torch.dtype) -> None:
    assert_equal(function(GOOD, LABELS.to(dtype)), function(GOOD, LABELS))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rounding_is_not_an_error(dtype: torch.dtype) -> None:
    """A thousand rounded probabilities miss one, and the score is that of the unrounded ones to the dtype's digits."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 1000, generator=generator, dtype=torch.float64)
    probs, labels = logits.softmax(1), logits.argmax(1)
    assert F.brier_score(probs.to(dtype), labels).item() == pytest.approx(F.brier_score(probs, labels).item(), rel=1e-3)
    uniform = torch.full((200, 1000), 1e-3).log().to(dtype)
    assert F.nll(uniform, labels, log_input=True).item() == pytest.approx(math.log(1000), rel=4e-3)


ONE = torch.ones(3)
TABLE = {"fog": [0.5]}
REFUSALS: list[tuple[Callable[[], Any], str]] = [
    (lambda: F.accuracy([[0.5, 0.5]], LABELS), "probs must be a torch tensor, got list"),
    (lambda: F.accuracy(GOOD, [0, 1]), "labels must be a torch tensor, got list"),
    (lambda: F.mean_corruption_error(TABLE, [0.5]), "baseline must be a mapping from corruption to errors, got list"),
    (lambda: F.accuracy(GOOD, LABELS, top_k=3), "top_k must not exceed the number of classes 2, got 3"),
    (lambda: F.accuracy(GOOD, LABELS, top_k=0), "top_k must be a whole number of at least 1, got 0"),
    (lambda: F.nll(GOOD, LABELS, log_input=True), "log-probabilities must have a log-sum-exp of zero"),
    (lambda: F.nll(GOOD.log() * float("nan"), LABELS, log_input=True), "log-probabilities must not be NaN"),
    (lambda: F.calibration_error(GOOD, LABELS, bins=0), "bins must be a whole number of at least 1, got 0"),
    (lambda: F.calibration_error(GOOD, LABELS, bins=1.5), "bins must be a whole number of at least 1, got 1.5"),
    (lambda: F.calibration_error(GOOD, LABELS, norm="l2"), "norm must be one of 'l1', 'max', got 'l2'"),
    (lambda: F.calibration_error(GOOD, LABELS, min_count=-1), "min_count must be a whole number of at least 0"),
    (lambda: F.adaptive_calibration_error(GOOD, LABELS, bins=0), "bins must be a whole number"),
    (lambda: F.adaptive_calibration_error(GOOD, LABELS, norm="l2"), "norm must be one of"),
    (lambda: F.reliability_diagram(GOOD, LABELS, bins=-1), "bins must be a whole number"),
    (lambda: F.calibration_floor(GOOD * 2), "must sum to one"),
    (lambda: F.calibration_floor(GOOD, bins=0), "bins must be a whole number of at least 1"),
    (lambda: F.aurc(GOOD, LABELS, ONE), "uncertainty must have one entry for each of the 2 samples, got 3"),
    (lambda: F.aurc(GOOD, LABELS, ONE[:2] * float("nan")), "uncertainty must be finite"),
    (lambda: F.ood_auroc(ONE[:0], ONE), "uncertainty_in is empty"),
    (lambda: F.ood_auroc(ONE, ONE[:0]), "uncertainty_out is empty"),
    (lambda: F.ood_auroc(ONE[:, None], ONE), r"uncertainty_in must have shape \(N,\), got \(3, 1\)"),
    (lambda: F.ood_auroc(ONE, ONE / 0), "uncertainty_out must be finite"),
    (lambda: F.ood_auroc(ONE > 0, ONE), "uncertainty_in must hold real numbers"),
    (lambda: F.fpr_at_tpr(ONE, ONE, tpr=0.0), r"tpr must lie in \(0, 1\], got 0.0"),
    (lambda: F.entropy(GOOD * 2), "must sum to one"),
    (lambda: F.mutual_information(GOOD), r"draws must have shape \(S, N, C\), got \(2, 2\)"),
    (lambda: F.rmse(ONE, ONE[:, None]), r"the same shape, got \(3,\) and \(3, 1\)"),
    (lambda: F.rmse(ONE[:0], ONE[:0]), "prediction is empty"),
    (lambda: F.rmse(ONE / 0, ONE), "prediction must be finite"),
    (lambda: F.rmse(ONE, ONE / 0), "target must be finite"),
    (lambda: F.log_predictive_density(ONE, ONE, 1.0), r"draws must have shape \(S, \*\(3,\)\), got \(3,\)"),
    (lambda: F.log_predictive_density(ONE[:2].expand(4, 2), ONE, 1.0), r"the target's shape \(3,\), got \(2,\)"),
    (lambda: F.log_predictive_density(iter([ONE[:, None]]), ONE, 1.0), r"the target's shape \(3,\), got \(3, 1\)"),
    (lambda: F.log_predictive_density(torch.empty(0, 3), ONE, 1.0), "draws is empty"),
    (lambda: F.log_predictive_density([], ONE, 1.0), "draws is empty"),
    (lambda: F.log_predictive_density(ONE[None] / 0, ONE, 1.0), "draws must be finite"),
    (lambda: F.log_predictive_density(ONE[None], ONE, 0.0), "precision must be positive and finite, got 0.0"),
    (lambda: F.log_predictive_density(ONE[None], ONE, ONE), r"precision must be a number or have shape \(D,\)"),
    (lambda: F.log_predictive_density(ONE[None], ONE[0], 1.0), r"target must have shape \(N,\) or \(N, D\)"),
    (lambda: F.mean_corruption_error({}, TABLE), "errors names no corruption"),
    (lambda: F.mean_corruption_error(TABLE, {"snow": [0.5]}), "only one of them has fog, snow"),
    (lambda: F.mean_corruption_error(TABLE, {"fog": [0.5, 0.5]}), "the same severities, got 1 and 2 for 'fog'"),
    (lambda: F.mean_corruption_error({"fog": [-0.1]}, TABLE), r"errors\['fog'\] must hold finite errors that are not"),
    (lambda: F.mean_corruption_error({"fog": []}, TABLE), r"errors\['fog'\] must hold one error per severity"),
    (lambda: F.mean_corruption_error(TABLE, {"fog": [0.0]}), "'fog' does not harm the baseline"),
    (lambda: F.relative_mean_corruption_error(TABLE, 0.1, TABLE, 0.5), "'fog' does not harm the baseline"),
    (lambda: F.relative_mean_corruption_error(TABLE, 0.1, TABLE, 0.1, "mine"), "denominator must be one of"),
    (lambda: F.relative_mean_corruption_error(TABLE, -1.0, TABLE, 0.1), "clean must hold finite errors"),
    (lambda: F.recall_at_1(ONE, LABELS), r"embeddings must have shape \(N, D\), got \(3,\)"),
    (lambda: F.recall_at_1(GOOD * float("nan"), LABELS), "embeddings must be finite"),
    (lambda: F.recall_at_1(GOOD[:1], LABELS[:1]), "needs at least two samples, got 1"),
    (lambda: F.recall_at_1(GOOD[:0], LABELS[:0]), "embeddings is empty"),
    (
        lambda: F.recall_at_1(GOOD, torch.tensor([0, 1, 1])),
        r"labels must have shape \(2,\) to match embeddings, got \(3,\)",
    ),
    (lambda: F.recall_at_1(GOOD, LABELS.float()), "labels must have an integer dtype"),
    (lambda: F.r_auroc(ONE, GOOD, LABELS), "one entry for each of the 2 samples, got 3"),
    (lambda: F.r_auroc(ONE[:2] / 0, GOOD, LABELS), "uncertainty must be finite"),
    (lambda: F.r_auroc(ONE[:2], GOOD, LABELS), "but all 2 are wrong"),
    (lambda: F.r_auroc(ONE[:2], GOOD, torch.tensor([1, 1])), "but all 2 are right"),
    (lambda: metrics.Accuracy(top_k=0), "top_k must be a whole number"),
    (lambda: metrics.CalibrationError(bins=0), "bins must be a whole number"),
    (lambda: metrics.CalibrationError(norm="l2"), "norm must be one of"),
    (lambda: metrics.AdaptiveCalibrationError(norm="l2"), "norm must be one of"),
    (lambda: metrics.BrierDecomposition(num_classes=0), "num_classes must be a whole number"),
    (lambda: metrics.BrierDecomposition(3).update(GOOD, LABELS), "probs must have num_classes=3 columns, got 2"),
    (lambda: metrics.LogPredictiveDensity(precision=-1.0), "precision must be positive"),
    (lambda: metrics.OODAUROC().update(ONE, ONE), "is_ood must be a bool or a bool tensor"),
    (lambda: metrics.MeanCorruptionError({"fog": [50.0]}), "baseline must hold fractions in 0..1, got 50.0"),
    (lambda: metrics.MeanCorruptionError(TABLE).update(GOOD, LABELS, "snow", 1), "corruption must be one of 'fog'"),
    (lambda: metrics.MeanCorruptionError(TABLE).update(GOOD, LABELS, "fog", 2), r"severity must lie in 1..1 for 'fog'"),
    (lambda: metrics.RelativeMeanCorruptionError(TABLE, 2.0), "baseline_clean must hold fractions"),
    (
        lambda: metrics.RelativeMeanCorruptionError(TABLE, 0.1).update(GOOD, LABELS, "fog"),
        "corruption and severity must be given together",
    ),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSALS, ids=[sentence for _, sentence in REFUSALS])
def test_refusal(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence) as refusal:
        call()
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).endswith(".")
