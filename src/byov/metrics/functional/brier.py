"""The Brier score and its exact decomposition."""

from typing import NamedTuple

import torch
from torch import Tensor

from byov.metrics.functional._checks import check_classification


class BrierParts(NamedTuple):
    """The four parts of the Brier score: score = uncertainty − resolution + reliability + within_bin."""

    uncertainty: Tensor
    """1 − ‖p̄‖²: how hard the labels are to guess; no model changes it."""
    resolution: Tensor
    """How far the label frequencies differ between bins; more is better, and it is subtracted."""
    reliability: Tensor
    """Mean squared distance of the forecasts from the label frequencies of their bin; less is better."""
    within_bin: Tensor
    """−2 × the covariance of forecast and label inside the bins: negative where a bin's forecasts carry information."""

    @property
    def score(self) -> Tensor:
        """The Brier score these parts add up to."""
        return self.uncertainty - self.resolution + self.reliability + self.within_bin


class BrierSums(NamedTuple):
    """Sufficient statistics of the decomposition: they add over batches and processes."""

    labels: Tensor
    """(C, C), [k, j]: samples predicted k with label j."""
    forecast: Tensor
    """(C, C), [k]: the sum of the forecasts predicted k."""
    square: Tensor
    """Σᵢ ‖pᵢ‖²."""
    hit: Tensor
    """Σᵢ pᵢ(yᵢ)."""


def brier_score(probs: Tensor, labels: Tensor) -> Tensor:
    """Mean squared distance of forecast and one-hot label, (1/N) Σᵢ ‖pᵢ − yᵢ‖².

    It sums over the classes, so it runs from 0 to 2 (for two classes, twice the binary Brier score).

    Args:
        probs: (N, C), each row on the simplex.
        labels: (N,), integers in 0..C−1.

    Returns:
        A float64 scalar in 0..2.

    Example:
        >>> import torch
        >>> probs = torch.tensor([[0.5, 0.5], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> brier_score(probs, torch.tensor([0, 0, 1, 1])).item()  # (0.5 + 0 + 2 + 0) / 4
        0.625
    """
    labels = check_classification(probs, labels)
    probs = probs.double()
    own = probs.gather(1, labels[:, None]).squeeze(1)
    return (probs.square().sum(1) - 2 * own + 1).mean()


def brier_decomposition(probs: Tensor, labels: Tensor) -> BrierParts:
    """Uncertainty, resolution, reliability and the within-bin term of the Brier score, bins by predicted class.

    With bins k, their weights w_k, label frequencies ō_k, and the label marginal p̄:

        uncertainty = 1 − ‖p̄‖²                     resolution = Σ_k w_k ‖ō_k − p̄‖²
        reliability = (1/N) Σᵢ ‖pᵢ − ō_k(i)‖²      within_bin = −2 Σ_k w_k tr Cov_k(p, y)

    and **score = uncertainty − resolution + reliability + within_bin** exactly: resolution enters with a minus.
    Forecasts differ inside a bin, so even a perfectly calibrated model has a positive reliability, the variance of its
    forecasts inside the bins; its within_bin is then −2 × that. Without the fourth part the others miss the score.

    Args:
        probs: (N, C), each row on the simplex.
        labels: (N,), integers in 0..C−1.

    Returns:
        `BrierParts`, four float64 scalars; `.score` adds them up.

    Example:
        >>> import torch
        >>> probs = torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.1, 0.9]], dtype=torch.float64)
        >>> labels = torch.tensor([0, 1, 1, 1])
        >>> parts = brier_decomposition(probs, labels)
        >>> [round(part.item(), 6) for part in parts]
        [0.375, 0.125, 0.1, -0.1]
        >>> round(parts.score.item(), 6), round(brier_score(probs, labels).item(), 6)
        (0.25, 0.25)
    """
    return parts_of_sums(brier_sums(probs, check_classification(probs, labels)))


def brier_sums(probs: Tensor, labels: Tensor) -> BrierSums:
    """The sufficient statistics of one batch, in float64."""
    classes = probs.shape[1]
    predicted = probs.argmax(1)
    probs = probs.double()
    return BrierSums(
        labels=torch.bincount(predicted * classes + labels, minlength=classes**2).view(classes, classes).double(),
        forecast=probs.new_zeros(classes, classes).index_add_(0, predicted, probs),
        square=probs.square().sum(),
        hit=probs.gather(1, labels[:, None]).sum(),
    )


def parts_of_sums(sums: BrierSums) -> BrierParts:
    """The decomposition from its sufficient statistics.

    With Σᵢ pᵢ·ō_k(i) = Σ_k forecast_k · ō_k, both the reliability and the covariance need one pass only.
    """
    per_bin = sums.labels.sum(1)
    samples = per_bin.sum()
    marginal = sums.labels.sum(0) / samples
    observed = sums.labels / per_bin.clamp_min(1)[:, None]
    agreement = (sums.forecast * observed).sum()
    spread = per_bin @ (observed - marginal).square().sum(1)
    distance = sums.square - 2 * agreement + per_bin @ observed.square().sum(1)
    return BrierParts(
        uncertainty=1 - marginal.square().sum(),
        resolution=spread / samples,
        reliability=distance.clamp_min(0) / samples,  # a sum of squares; rounding may reach −1e−16
        within_bin=-2 * (sums.hit - agreement) / samples,
    )
