"""Uncertainty in nats, and what it is good for: telling foreign data from known, and right predictions from wrong.

Total = aleatoric + epistemic: entropy(mean) = expected entropy + mutual information. In out-of-distribution detection
a higher score means more likely foreign, and foreign is the positive class. In selective prediction the least certain
samples are set aside.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from byov.metrics.functional._checks import check_classification, check_probs, check_scores


class RiskCoverageCurve(NamedTuple):
    """Risk at every coverage 1/N, 2/N, …, 1."""

    coverage: Tensor
    """(N,), the fraction of samples kept, the most certain first."""
    risk: Tensor
    """(N,), the error rate among them."""


def entropy(probs: Tensor) -> Tensor:
    """Return the entropy (N,) of each forecast, H(p) = −Σ_c p(c) log p(c), with 0 log 0 = 0.

    Example:
        >>> [round(h, 6) for h in entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()]
        [0.693147, 0.0]
    """
    check_probs(probs)
    return torch.special.entr(probs.double()).sum(-1)


def mutual_information(draws: Tensor) -> Tensor:
    """Return the mutual information (N,) of label and weights, H(mean of the draws) − mean of H(draws).

    `draws` is (S, N, C), the probabilities under each of S draws; the result lies in 0..log min(S, C).

    Example:
        >>> draws = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])
        >>> [round(i, 6) for i in mutual_information(draws).tolist()]
        [0.693147, 0.0]
    """
    check_probs(draws, dims=3, name="draws")
    draws = draws.double()
    total, aleatoric = torch.special.entr(draws.mean(0)).sum(-1), torch.special.entr(draws).sum(-1).mean(0)
    return (total - aleatoric).clamp_min(0)  # Jensen's inequality, but for rounding


def ood_auroc(uncertainty_in: Tensor, uncertainty_out: Tensor) -> Tensor:
    """Return the area under the ROC curve of telling foreign from known, P(u_out > u_in) + ½ P(u_out = u_in).

    It is computed by ranks (Mann–Whitney), ties at their midranks: 0.5 is chance, 1 separates. The scores are (N,) of
    in-distribution and (M,) of out-of-distribution samples, all finite.

    Example:
        >>> ood_auroc(torch.tensor([0.1, 0.2, 0.5]), torch.tensor([0.5, 0.9])).item()  # (2.5 + 3) / 6
        0.9166666666666666
    """
    inside = check_scores(uncertainty_in, "uncertainty_in")
    outside = check_scores(uncertainty_out, "uncertainty_out")
    _, group, size = torch.cat([inside, outside]).unique(return_inverse=True, return_counts=True)
    midrank = size.cumsum(0) - (size - 1).double() / 2
    lowest = len(outside) * (len(outside) + 1) / 2  # the rank sum if every foreign sample came first
    return (midrank[group[len(inside) :]].sum() - lowest) / (len(inside) * len(outside))


def fpr_at_tpr(uncertainty_in: Tensor, uncertainty_out: Tensor, tpr: float = 0.95) -> Tensor:
    """Return the fraction of known samples flagged by the strictest threshold that still flags `tpr` of the foreign.

    A sample is flagged when its uncertainty is at or above the threshold, which is the ⌈tpr·M⌉-th largest foreign
    score; `tpr` lies in (0, 1]. (Papers that take the in-distribution class as positive report another number under the
    same name.)

    Example:
        >>> inside, outside = torch.tensor([0.1, 0.2, 0.5, 0.7]), torch.tensor([0.4, 0.6, 0.8, 0.9])
        >>> fpr_at_tpr(inside, outside, tpr=0.75).item()
        0.25
    """
    inside = check_scores(uncertainty_in, "uncertainty_in")
    outside = check_scores(uncertainty_out, "uncertainty_out")
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr must lie in (0, 1], got {tpr}.")
    flagged = math.ceil(tpr * len(outside) - 1e-9)  # 0.07 · 100 is 7.000000000000001
    threshold = outside.sort(descending=True).values[max(flagged, 1) - 1]
    return (inside >= threshold).double().mean()


def fpr95(uncertainty_in: Tensor, uncertainty_out: Tensor) -> Tensor:
    """Return the false-positive rate at 95 % true positives: `fpr_at_tpr` with `tpr=0.95`.

    Example:
        >>> fpr95(torch.zeros(3), torch.ones(3)).item()
        0.0
    """
    return fpr_at_tpr(uncertainty_in, uncertainty_out, tpr=0.95)


def risk_coverage(probs: Tensor, labels: Tensor, uncertainty: Tensor | None = None) -> RiskCoverageCurve:
    """Return the error rate of the i most certain samples, for i = 1..N.

        risk(i/N) = (1/i) Σ_{j among the i least uncertain} 1[argmax p_j ≠ y_j]

    Samples of equal uncertainty have no order of their own. Each counts with the mean error of its group, which is the
    expectation over all orders, so the curve does not depend on how the data are sorted. `uncertainty` is any finite
    score (N,), higher is less certain (entropy, mutual information, …); 1 − max_c p(c) where it is not given.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
        >>> curve = risk_coverage(probs, torch.tensor([0, 0, 1, 0]))
        >>> curve.coverage.tolist(), curve.risk.tolist()
        ([0.25, 0.5, 0.75, 1.0], [0.0, 0.0, 0.0, 0.25])
    """
    return curve_of_errors(*uncertain_errors(probs, labels, uncertainty))


def aurc(probs: Tensor, labels: Tensor, uncertainty: Tensor | None = None) -> Tensor:
    """Return the area under the curve of `risk_coverage`, (1/N) Σᵢ risk(i/N): the mean risk over all coverages.

    A score that says nothing gives the error rate itself.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
        >>> labels = torch.tensor([0, 0, 1, 0])
        >>> aurc(probs, labels).item(), aurc(probs, labels, uncertainty=torch.zeros(4)).item()
        (0.0625, 0.25)
    """
    return risk_coverage(probs, labels, uncertainty).risk.mean()


def uncertain_errors(probs: Tensor, labels: Tensor, uncertainty: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the uncertainty and the 0/1 error of each sample, in float64."""
    labels = check_classification(probs, labels)
    confidence, predicted = probs.max(1)
    if uncertainty is None:
        uncertainty = 1 - confidence.double()
    else:
        uncertainty = check_scores(uncertainty, "uncertainty", samples=len(labels))
    return uncertainty, (predicted != labels).double()


def curve_of_errors(uncertainty: Tensor, error: Tensor) -> RiskCoverageCurve:
    """Compute the risk–coverage curve from one uncertainty and one loss per sample."""
    _, group, size = uncertainty.unique(return_inverse=True, return_counts=True)
    mean = error.new_zeros(len(size)).index_add_(0, group, error) / size
    kept = torch.arange(1, len(error) + 1, dtype=error.dtype, device=error.device)
    return RiskCoverageCurve(coverage=kept / len(error), risk=mean.repeat_interleave(size).cumsum(0) / kept)
