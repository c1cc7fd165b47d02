"""Is a confidence of 0.8 right eight times out of ten? Calibration errors and the reliability diagram.

All of them use the top label: confidence is max_c p(c), and correct means that the label is that class. Samples are
assigned to B bins B_r, and each bin compares its mean confidence with its accuracy.
"""

from math import pi
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from byov.metrics.functional._checks import check_choice, check_classification, check_probs, check_whole

Norm = Literal["l1", "max"]


class ReliabilityBins(NamedTuple):
    """The data of a reliability diagram, one row per bin. Means of empty bins are NaN."""

    edges: Tensor
    """(B + 1,), from 0 to 1; bin r is (edges[r], edges[r + 1]]."""
    count: Tensor  # type: ignore[assignment]  # shadows tuple.count, which is not needed here
    """(B,), the number of samples in the bin."""
    confidence: Tensor
    """(B,), their mean confidence."""
    accuracy: Tensor
    """(B,), the fraction of them that is correct."""


def calibration_error(probs: Tensor, labels: Tensor, bins: int = 15, norm: Norm = "l1", min_count: int = 0) -> Tensor:
    """Return the expected (`norm="l1"`) or maximum (`norm="max"`) calibration error with equal-width bins.

        ECE = Σ_r |B_r|/n · |accuracy(B_r) − confidence(B_r)|,    MCE = max_r |accuracy(B_r) − confidence(B_r)|

    Bin r of B is ((r−1)/B, r/B], open on the left; a confidence of exactly 0 belongs to the first. Edges are rounded
    to the dtype of `probs`, so that 0.3 lies on the edge 3/10 in every precision.

    Bins with fewer than `min_count` samples are removed. The weights of the others remain |B_r|/n with n the number of
    *all* samples, as in the patching paper (D.2): they are not renormalised, and a removed bin counts as if it were
    calibrated. If no bin is left, this raises an error instead of returning 0. The paper's protocol, 20 bins without
    those of at most 5 samples, is `bins=20, min_count=6`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]], dtype=torch.float64)
        >>> labels = torch.tensor([0, 1, 1, 1])
        >>> round(calibration_error(probs, labels, bins=10).item(), 6)  # (0.1 + 0.8 + 0.3 + 0.4) / 4
        0.4
        >>> round(calibration_error(probs, labels, bins=10, norm="max").item(), 6)
        0.8
    """
    check_bins(bins, norm, min_count)
    return error_of_bins(top_label_sums(probs, labels, bins), norm, min_count)


def adaptive_calibration_error(probs: Tensor, labels: Tensor, bins: int = 15, norm: Norm = "l1") -> Tensor:
    """Return the calibration error with equal-mass bins: each holds n/B samples, to within one, by confidence.

    The last confidence of bin r is the ⌈rn/B⌉-th smallest of all. Equal confidences stay together in the lowest bin
    that reaches them, so the result does not depend on the order of the samples; empty bins are skipped.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]], dtype=torch.float64)
        >>> labels = torch.tensor([0, 1, 1, 1])
        >>> round(adaptive_calibration_error(probs, labels, bins=2).item(), 6)  # (|1 − 0.65| + |0.5 − 0.85|) / 2
        0.35
    """
    check_bins(bins, norm)
    return adaptive_error(*top_label(probs, labels), bins, norm)


def calibration_floor(probs: Tensor, bins: int = 15) -> Tensor:
    """Return the expected `calibration_error` of a perfectly calibrated model with these confidences.

        Σ_r √(2/π · Σ_{i in B_r} cᵢ (1 − cᵢ)) / n

    An ECE is never 0 on finitely many samples: if every prediction is right with probability c, the gap of a bin is a
    sum of independent errors of variance c (1 − c). It is approximated as normal, which is right to a tenth if a bin
    expects at least one error, and too large if it expects fewer. An ECE near its floor is no sign of miscalibration,
    and no ECE can be expected to be lower.

    Example:
        >>> probs = torch.tensor([[0.8, 0.2]]).expand(10_000, 2)
        >>> round(calibration_floor(probs).item(), 6)  # √(2/π · 0.16 / 10,000)
        0.003192
    """
    check_bins(bins)
    return floor_of_bins(bin_variances(probs, bins), len(probs))


def reliability_diagram(probs: Tensor, labels: Tensor, bins: int = 15) -> ReliabilityBins:
    """Return count, mean confidence and accuracy of each equal-width bin of `calibration_error`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6]])
        >>> diagram = reliability_diagram(probs, torch.tensor([0, 1, 1]), bins=4)
        >>> diagram.count.tolist(), diagram.accuracy.tolist()
        ([0.0, 0.0, 2.0, 1.0], [nan, nan, 0.5, 1.0])
    """
    check_bins(bins)
    return diagram_of_bins(top_label_sums(probs, labels, bins))


def top_label(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the confidence in the most probable class, and whether the label is that class."""
    labels = check_classification(probs, labels)
    confidence, predicted = probs.max(1)
    return confidence, predicted == labels


def top_label_sums(probs: Tensor, labels: Tensor, bins: int) -> Tensor:
    """Return `bin_sums` of the top label in equal-width bins."""
    confidence, correct = top_label(probs, labels)
    return bin_sums(confidence, correct, equal_width(confidence, bins), bins)


def equal_width(confidence: Tensor, bins: int) -> Tensor:
    """Return the index 0..B−1 of the left-open bin of each confidence; values rounded above one are in the last."""
    edges = torch.arange(1, bins, dtype=torch.float64, device=confidence.device) / bins
    return torch.bucketize(confidence, edges.to(confidence.dtype))


def bin_sums(confidence: Tensor, correct: Tensor, index: Tensor, bins: int) -> Tensor:
    """Return the sufficient statistics (3, B): samples in each bin, and sums of their confidences and hits."""
    confidence = confidence.double()
    samples = torch.stack([torch.ones_like(confidence), confidence, correct.double()])
    return samples.new_zeros(3, bins).index_add_(1, index, samples)


def bin_variances(probs: Tensor, bins: int) -> Tensor:
    """Return Σ c (1 − c) over the confidences of each equal-width bin, (B,)."""
    check_probs(probs)
    confidence = probs.max(1).values
    exact = confidence.double().clamp(max=1.0)
    return exact.new_zeros(bins).index_add_(0, equal_width(confidence, bins), exact * (1 - exact))


def floor_of_bins(variances: Tensor, count: Tensor | int) -> Tensor:
    """Compute `calibration_floor` from `bin_variances`: E|x| of a normal x is √(2/π) times its standard deviation."""
    return (variances * 2 / pi).sqrt().sum() / count


def error_of_bins(sums: Tensor, norm: Norm, min_count: int = 0) -> Tensor:
    """Compute the calibration error from `bin_sums`."""
    count, confidence, correct = sums
    kept = count >= max(min_count, 1)
    if not bool(kept.any()):
        raise ValueError(f"no bin holds min_count={min_count} samples or more, so there is no calibration error.")
    gap = (confidence - correct).abs()[kept]
    return gap.sum() / count.sum() if norm == "l1" else (gap / count[kept]).max()


def adaptive_error(confidence: Tensor, correct: Tensor, bins: int, norm: Norm) -> Tensor:
    """Compute `adaptive_calibration_error` from confidences and hits."""
    ordered = confidence.sort().values
    last = -(-torch.arange(1, bins, device=ordered.device) * len(ordered) // bins) - 1
    index = torch.bucketize(confidence, ordered[last])
    return error_of_bins(bin_sums(confidence, correct, index, bins), norm)


def diagram_of_bins(sums: Tensor) -> ReliabilityBins:
    """Compute the reliability diagram from `bin_sums`."""
    count, confidence, correct = sums
    edges = torch.arange(len(count) + 1, dtype=sums.dtype, device=sums.device) / len(count)
    return ReliabilityBins(edges, count, confidence / count, correct / count)


def check_bins(bins: int, norm: str = "l1", min_count: int = 0) -> None:
    """Raise if the settings of a calibration error are not valid."""
    check_whole(bins, "bins")
    check_choice(norm, "norm", ("l1", "max"))
    check_whole(min_count, "min_count", least=0)
