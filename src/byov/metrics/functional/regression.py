"""Regression: the root mean squared error and the log predictive density."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from byov.metrics.functional._checks import check_finite, check_real, check_same_shape


def rmse(prediction: Tensor, target: Tensor) -> Tensor:
    """Root mean squared error over all entries, at the scale of the data.

    Args:
        prediction: (N,) or (N, D), the mean over draws.
        target: the same shape; nothing is broadcast.

    Returns:
        A non-negative float64 scalar.

    Example:
        >>> import torch
        >>> rmse(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([4.0, 5.0, 0.0, 1.0])).item()
        3.0
    """
    return squared_error(prediction, target).sqrt()


def log_predictive_density(draws: Tensor | Iterable[Tensor], target: Tensor, precision: float | Tensor) -> Tensor:
    """Log of the mean over draws of the Gaussian density, averaged over the samples, in nats.

        (1/N) Σᵢ log (1/S) Σ_s N(yᵢ | f_s(xᵢ), τ⁻¹)

    by log-sum-exp, so that a target far from every draw gives a large negative number and not −inf. For (N, D) targets
    the density of a sample is the product over D. It is a density: draws, targets and the precision τ must all be at
    the data's own scale. Dividing y by s multiplies τ by s² and adds log s to the result (D log s for D outputs).

    Args:
        draws: (S, N) or (S, N, D), the network's output under S draws; or any iterable of S tensors (N[, D]), which is
            read once, one draw in memory at a time.
        target: (N,) or (N, D).
        precision: τ > 0, a number or one per output, (D,).

    Returns:
        A float64 scalar; higher is better.

    Example:
        >>> import torch
        >>> draws, target = torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([1.0, 1.0])
        >>> round(log_predictive_density(draws, target, precision=4.0).item(), 6)  # log N(0 | 0, ¼) − (4/2 + 0)/2
        -1.225791
        >>> round(log_predictive_density(iter(draws), target, precision=4.0).item(), 6)
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
    # Many draws at a time where they are given as a tensor, but never all of them in float64.
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


def squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean squared error in float64."""
    check_same_shape(prediction, target)
    error = check_finite(prediction, "prediction").double() - check_finite(target, "target").double()
    return error.square().mean()


def check_precision(precision: float | Tensor) -> Tensor:
    """Return τ in float64, refusing what is not positive and finite."""
    tau = torch.as_tensor(precision, dtype=torch.float64)
    if not bool((tau.isfinite() & (tau > 0)).all()):
        raise ValueError(f"precision must be positive and finite, got {precision}.")
    return tau
