"""Scores of a prediction against the truth: accuracy, log and Brier score for classes, RMSE and density for numbers."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from byov.metrics.functional._checks import (
    check_classification,
    check_finite,
    check_labels,
    check_log_probs,
    check_real,
    check_whole,
)


class BrierParts(NamedTuple):
    """The four parts of the Brier score: score = uncertainty − resolution + reliability + within_bin."""

    uncertainty: Tensor
    """1 − ‖p̄‖²: how hard the labels are to guess; no model changes it."""
    resolution: Tensor
    """How much the label frequencies differ between bins; more is better, and it is subtracted."""
    reliability: Tensor
    """Mean squared distance of the forecasts from the label frequencies of their bin; less is better."""
    within_bin: Tensor
    """−2 × the covariance of forecast and label within bins: negative if forecasts within a bin are informative."""

    @property
    def score(self) -> Tensor:
        """Return the Brier score these parts add up to."""
        return self.uncertainty - self.resolution + self.reliability + self.within_bin


def accuracy(probs: Tensor, labels: Tensor, top_k: int = 1) -> Tensor:
    """Return the fraction of samples whose label is among the `top_k` most probable classes.

    Among equal probabilities the lower class index comes first, as in `argmax`, so a constant forecast scores the
    frequency of classes 0..k−1 and not one.

    Example:
        >>> probs = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3], [0.1, 0.2, 0.7], [0.4, 0.5, 0.1]])
        >>> labels = torch.tensor([0, 2, 2, 0])
        >>> accuracy(probs, labels).item(), accuracy(probs, labels, top_k=2).item()
        (0.5, 0.75)
    """
    labels = check_classification(probs, labels)
    check_whole(top_k, "top_k")
    if top_k > probs.shape[1]:
        raise ValueError(f"top_k must not exceed the number of classes {probs.shape[1]}, got {top_k}.")
    own = probs.gather(1, labels[:, None])
    classes = torch.arange(probs.shape[1], device=probs.device)
    ahead = (probs > own) | ((probs == own) & (classes < labels[:, None]))
    return (ahead.sum(1) < top_k).double().mean()


def nll(probs: Tensor, labels: Tensor, *, log_input: bool = False) -> Tensor:
    """Return the negative log-likelihood of the labels, −(1/N) Σᵢ log pᵢ(yᵢ), in nats.

    A probability that underflowed to zero would make the mean infinite, so p is clamped to the smallest normal number
    of its dtype (float32: 1.2e−38, at most 87.3 nats per sample). A larger floor, such as the machine epsilon, would
    hide confident mistakes. With `log_input=True` the first argument holds log-probabilities, which may be −inf, and
    nothing is clamped.

    Example:
        >>> probs, labels = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64), torch.tensor([0, 1])
        >>> round(nll(probs, labels).item(), 6), round(nll(probs.log(), labels, log_input=True).item(), 6)
        (0.490415, 0.490415)
    """
    if log_input:
        check_log_probs(probs)
        return -probs.gather(1, check_labels(labels, probs)[:, None]).double().mean()
    own = probs.gather(1, check_classification(probs, labels)[:, None]).double()
    return -own.clamp_min(torch.finfo(probs.dtype).tiny).log().mean()


def brier_score(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean squared distance of forecast and one-hot label, (1/N) Σᵢ ‖pᵢ − yᵢ‖².

    It sums over the classes, so it runs from 0 to 2 (for two classes, twice the binary Brier score).

    Example:
        >>> probs = torch.tensor([[0.5, 0.5], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> brier_score(probs, torch.tensor([0, 0, 1, 1])).item()  # (0.5 + 0 + 2 + 0) / 4
        0.625
    """
    labels = check_classification(probs, labels)
    probs = probs.double()
    own = probs.gather(1, labels[:, None]).squeeze(1)
    return (probs.square().sum(1) - 2 * own + 1).mean()


def brier_decomposition(probs: Tensor, labels: Tensor) -> BrierParts:
    """Split the Brier score into uncertainty, resolution, reliability and a within-bin term, bins by predicted class.

    With bins k, their weights w_k, label frequencies ō_k, and the label marginal p̄:

        uncertainty = 1 − ‖p̄‖²                     resolution = Σ_k w_k ‖ō_k − p̄‖²
        reliability = (1/N) Σᵢ ‖pᵢ − ō_k(i)‖²      within_bin = −2 Σ_k w_k tr Cov_k(p, y)

    and **score = uncertainty − resolution + reliability + within_bin** exactly: resolution is subtracted. Forecasts
    differ within a bin, so even a perfectly calibrated model has a positive reliability, the variance of its forecasts
    within the bins; its within_bin is then −2 × that. Without the fourth part the others do not add up to the score.

    Example:
        >>> probs = torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.1, 0.9]], dtype=torch.float64)
        >>> parts = brier_decomposition(probs, torch.tensor([0, 1, 1, 1]))
        >>> [round(part.item(), 6) for part in parts], round(parts.score.item(), 6)
        ([0.375, 0.125, 0.1, -0.1], 0.25)
    """
    return parts_of_sums(*brier_sums(probs, labels))


def rmse(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the root mean squared error over all entries, at the scale of the data.

    The prediction is the mean over draws, (N,) or (N, D), and the target has the same shape; nothing is broadcast.

    Example:
        >>> rmse(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([4.0, 5.0, 0.0, 1.0])).item()
        3.0
    """
    return squared_error(prediction, target).sqrt()


def log_predictive_density(draws: Tensor | Iterable[Tensor], target: Tensor, precision: float | Tensor) -> Tensor:
    """Return the log of the mean over draws of the Gaussian density, averaged over the samples, in nats.

        (1/N) Σᵢ log (1/S) Σ_s N(yᵢ | f_s(xᵢ), τ⁻¹)

    by log-sum-exp, so that a target far from every draw gives a large negative number and not −inf. For (N, D) targets
    the density of a sample is the product over D. It is a density: draws, targets and the precision τ must all be at
    the original scale of the data. Dividing y by s multiplies τ by s² and adds log s to the result (D log s for D
    outputs).

    Args:
        draws: (S, N) or (S, N, D), the network's output under S draws; or any iterable of S tensors (N[, D]), read
            once, with one draw in memory at a time.
        target: (N,) or (N, D).
        precision: τ > 0, a number or one per output, (D,).

    Example:
        >>> draws, target = torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([1.0, 1.0])
        >>> round(log_predictive_density(draws, target, precision=4.0).item(), 6)  # log N(0 | 0, ¼) − (4/2 + 0)/2
        -1.225791
    """
    check_real(target, "target")
    if target.ndim not in (1, 2):
        raise ValueError(f"target must have shape (N,) or (N, D), got {tuple(target.shape)}.")
    target = check_finite(target, "target").double()
    if isinstance(draws, Tensor) and draws.ndim != target.ndim + 1:
        raise ValueError(f"draws must have shape (S, *{tuple(target.shape)}), got {tuple(draws.shape)}.")
    tau = check_precision(precision).to(target.device)
    if tau.ndim and tau.shape != target.shape[1:]:
        raise ValueError(f"precision must be a number or have shape (D,), got {tuple(tau.shape)}.")
    density, count = target.new_full((len(target),), -math.inf), 0
    # A tensor of draws is processed many draws at a time, but never all of them in float64.
    for chunk in draws.split(64) if isinstance(draws, Tensor) else (draw[None] for draw in draws):
        if chunk.shape[1:] != target.shape:
            shape = tuple(chunk.shape[1:])
            raise ValueError(f"every draw must have the target's shape {tuple(target.shape)}, got {shape}.")
        error = check_finite(chunk, "draws").double() - target
        log_density = 0.5 * (tau.log() - math.log(2 * math.pi) - tau * error.square())
        if log_density.ndim == 3:
            log_density = log_density.sum(-1)
        density, count = density.logaddexp(log_density.logsumexp(0)), count + len(chunk)
    if count == 0:
        raise ValueError("draws is empty.")
    return (density - math.log(count)).mean()


def brier_sums(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the sufficient statistics of the decomposition, which add over batches and processes, in float64.

    These are the counts (C, C) of samples with prediction k and label j, at [k, j]; the sums (C, C) of the forecasts
    that predict k, at [k]; Σᵢ ‖pᵢ‖²; and Σᵢ pᵢ(yᵢ).
    """
    labels = check_classification(probs, labels)
    classes = probs.shape[1]
    predicted = probs.argmax(1)
    counts = torch.bincount(predicted * classes + labels, minlength=classes**2).view(classes, classes).double()
    probs = probs.double()
    forecasts = probs.new_zeros(classes, classes).index_add_(0, predicted, probs)
    return counts, forecasts, probs.square().sum(), probs.gather(1, labels[:, None]).sum()


def parts_of_sums(counts: Tensor, forecasts: Tensor, square: Tensor, hit: Tensor) -> BrierParts:
    """Compute the decomposition from `brier_sums`.

    With Σᵢ pᵢ·ō_k(i) = Σ_k forecasts_k · ō_k, both the reliability and the covariance need only one pass.
    """
    per_bin = counts.sum(1)
    samples = per_bin.sum()
    marginal = counts.sum(0) / samples
    observed = counts / per_bin.clamp_min(1)[:, None]
    agreement = (forecasts * observed).sum()
    spread = per_bin @ (observed - marginal).square().sum(1)
    distance = square - 2 * agreement + per_bin @ observed.square().sum(1)
    return BrierParts(
        uncertainty=1 - marginal.square().sum(),
        resolution=spread / samples,
        reliability=distance.clamp_min(0) / samples,  # a sum of squares; rounding may reach −1e−16
        within_bin=-2 * (hit - agreement) / samples,
    )


def squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error; raise if the shapes differ, which broadcasting would hide."""
    check_real(prediction, "prediction")
    check_real(target, "target")
    if prediction.shape != target.shape:
        shapes = f"{tuple(prediction.shape)} and {tuple(target.shape)}"
        raise ValueError(f"prediction and target must have the same shape, got {shapes}.")
    error = check_finite(prediction, "prediction").double() - check_finite(target, "target").double()
    return error.square().mean()


def check_precision(precision: float | Tensor) -> Tensor:
    """Return τ in float64; raise unless it is positive and finite."""
    tau = torch.as_tensor(precision, dtype=torch.float64)
    if not bool((tau.isfinite() & (tau > 0)).all()):
        raise ValueError(f"precision must be positive and finite, got {precision}.")
    return tau
