"""Selective prediction: how the error falls as the least certain samples are set aside."""

from typing import NamedTuple

import torch
from torch import Tensor

from byov.metrics.functional._checks import check_classification, check_scores


class RiskCoverageCurve(NamedTuple):
    """Risk at every coverage 1/N, 2/N, …, 1."""

    coverage: Tensor
    """(N,), the fraction of samples kept, the most certain first."""
    risk: Tensor
    """(N,), the error rate among them."""


def risk_coverage(probs: Tensor, labels: Tensor, uncertainty: Tensor | None = None) -> RiskCoverageCurve:
    """Error rate of the i most certain samples, for i = 1..N.

        risk(i/N) = (1/i) Σ_{j among the i least uncertain} 1[argmax p_j ≠ y_j]

    Samples of equal uncertainty have no order of their own. Each counts with the mean error of its group, which is the
    expectation over all orders, so the curve does not depend on how the data are sorted.

    Args:
        probs: (N, C), each row on the simplex.
        labels: (N,), integers in 0..C−1.
        uncertainty: (N,), any finite score, higher is less certain (entropy, mutual information, …); 1 − max_c p(c)
            where it is not given.

    Returns:
        `RiskCoverageCurve` of float64 tensors.

    Example:
        >>> import torch
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
        >>> curve = risk_coverage(probs, torch.tensor([0, 0, 1, 0]))
        >>> curve.coverage.tolist(), curve.risk.tolist()
        ([0.25, 0.5, 0.75, 1.0], [0.0, 0.0, 0.0, 0.25])
    """
    return curve_of_errors(*uncertain_errors(probs, labels, uncertainty))


def aurc(probs: Tensor, labels: Tensor, uncertainty: Tensor | None = None) -> Tensor:
    """Area under the risk–coverage curve, (1/N) Σᵢ risk(i/N): the mean risk over all coverages. Lower is better.

    A score that says nothing gives the error rate itself. Ties are as in `risk_coverage`.

    Args:
        probs: (N, C), each row on the simplex.
        labels: (N,), integers in 0..C−1.
        uncertainty: (N,), as in `risk_coverage`.

    Returns:
        A float64 scalar in 0..1.

    Example:
        >>> import torch
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
        >>> labels = torch.tensor([0, 0, 1, 0])
        >>> aurc(probs, labels).item(), aurc(probs, labels, uncertainty=torch.zeros(4)).item()
        (0.0625, 0.25)
    """
    return risk_coverage(probs, labels, uncertainty).risk.mean()


def uncertain_errors(probs: Tensor, labels: Tensor, uncertainty: Tensor | None) -> tuple[Tensor, Tensor]:
    """The uncertainty and the 0/1 error of each sample, in float64."""
    labels = check_classification(probs, labels)
    confidence, predicted = probs.max(1)
    if uncertainty is None:
        uncertainty = 1 - confidence.double()
    else:
        uncertainty = check_scores(uncertainty, "uncertainty", samples=len(labels))
    return uncertainty, (predicted != labels).double()


def curve_of_errors(uncertainty: Tensor, error: Tensor) -> RiskCoverageCurve:
    """The risk–coverage curve of one uncertainty and one loss per sample."""
    _, group, size = uncertainty.unique(return_inverse=True, return_counts=True)
    mean = error.new_zeros(len(size)).index_add_(0, group, error) / size
    kept = torch.arange(1, len(error) + 1, dtype=error.dtype, device=error.device)
    return RiskCoverageCurve(coverage=kept / len(error), risk=mean.repeat_interleave(size).cumsum(0) / kept)
