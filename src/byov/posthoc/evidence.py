"""The prior precision of a Laplace approximation, by its marginal likelihood or by its predictions on held-out data.

    log p(D) ≈ log p(D | w) − ½ δ ‖w‖² − ½ Σ_i log (1 + λ_i / δ)

with the eigenvalues λ of the curvature and the prior N(0, 1/δ). Its derivative in log δ is ½ (γ − δ ‖w‖²), where
γ = Σ λ / (λ + δ) counts the directions determined by the data (MacKay 1992). The first term falls with δ and the second
rises, so there is one maximum, which bisection finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log, pi, sqrt

from torch import Generator, Tensor
from torch.nn.functional import binary_cross_entropy

from byov.posterior.module import BayesianModule
from byov.posthoc.curvature import Likelihood
from byov.prediction.outputs import Task
from byov.prediction.predict import predict

RANGE = (1e-8, 1e8)
"""Bounds of the prior precision: weights of 0 would give infinity."""
DRAWS, STEP = 128, sqrt(10)
TASKS: dict[Likelihood, Task] = {"softmax": "classification", "bernoulli": "multilabel", "gaussian": "regression"}


@dataclass(frozen=True)
class Evidence:
    """The fit of a Laplace approximation: its hyperparameters, and how well it explains the data.

    Attributes:
        log_marginal_likelihood: of the data, in nats.
        log_likelihood: of the data at the mean.
        prior_precision: δ of the prior N(0, 1/δ).
        noise: for a regression, the standard deviation σ of the outputs; else None.
        structure: "full", "kron" or "diag".
        examples: the number of labels seen.
    """

    log_marginal_likelihood: float
    log_likelihood: float
    prior_precision: float
    noise: float | None
    structure: str
    examples: int

    @property
    def precision(self) -> float | None:
        """Return 1/σ², the `precision` of a regression in `byov.predict`."""
        return None if self.noise is None else self.noise**-2


def best_precision(values: Tensor, square: float) -> float:
    """Find δ with δ ‖w‖² = Σ λ / (λ + δ); `square` is ‖w‖²."""
    low, high = RANGE
    for _ in range(60):
        middle = sqrt(low * high)
        rising = effective_parameters(values, middle) > middle * square
        low, high = (middle, high) if rising else (low, middle)
    return sqrt(low * high)


def effective_parameters(values: Tensor, precision: float) -> float:
    """Compute γ = Σ λ / (λ + δ)."""
    return float((values / (values + precision)).sum())


def best_noise(values: Tensor, square: float, loss: float, numbers: int, precision: float | None) -> float:
    """Find σ of a regression with this half squared error: σ² = error / (n − γ), with the best δ for each σ."""
    variance = 2 * loss / numbers
    for _ in range(1000):
        scaled = values / variance
        delta = best_precision(scaled, square) if precision is None else precision
        new = 2 * loss / max(numbers - effective_parameters(scaled, delta), 1.0)
        if not abs(new - variance) > 1e-9 * variance:
            break
        variance = new
    if not variance > 0:
        raise ValueError("The network fits these labels exactly, so the noise is unknown: pass noise= to byov.laplace.")
    return sqrt(variance)


def log_marginal(log_likelihood: float, values: Tensor, square: float, precision: float) -> float:
    """Compute the log marginal likelihood, the equation in the module docstring."""
    return log_likelihood - 0.5 * precision * square - 0.5 * float((values / precision).log1p().sum())


def gaussian_log_likelihood(loss: float, numbers: int, noise: float) -> float:
    """Compute log p of `numbers` values with half squared error `loss` under noise σ."""
    return -loss / noise**2 - numbers * log(noise * sqrt(2 * pi))


# On held-out data


def predictive_loss(head: BayesianModule, x: Tensor, y: Tensor, likelihood: Likelihood, noise: float | None) -> float:
    """Compute the average negative log-likelihood of labels under the mean over draws, the same ones at every call."""
    found = predict(head, x, DRAWS, generator=Generator(x.device).manual_seed(0), task=TASKS[likelihood])
    mean = found.mean.double()
    if likelihood == "softmax":
        rows = y.flatten() >= 0
        of_label = mean[rows].gather(1, y.flatten().long()[rows, None])
        return -float(of_label.clamp_min(1e-300).log().mean())
    y = y.reshape(mean.shape).double()
    if likelihood == "bernoulli":
        return float(binary_cross_entropy(mean.clamp(0, 1), y))
    variance = found.std.double().square() + (noise or 1.0) ** 2
    return float(0.5 * ((y - mean).square() / variance + variance.log() + log(2 * pi)).mean())


def hill_climb(loss: Callable[[float], float], start: float) -> float:
    """Search from `start` in half decades; return the precision whose neighbours have a larger loss."""
    best, least = start, loss(start)
    for step in (STEP, 1 / STEP):
        while RANGE[0] < best * step < RANGE[1] and (now := loss(best * step)) < least:
            best, least = best * step, now
    return best
