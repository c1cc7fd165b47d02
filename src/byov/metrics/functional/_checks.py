"""Check the input of every metric, with a one-sentence error.

Each check copies all it needs to the host at once: on an accelerator, this is one synchronisation for the forecasts and
one for the labels.
"""

import math

import torch
from torch import Tensor

INTEGER = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def check_probs(probs: Tensor, *, dims: int = 2, name: str = "probs") -> None:
    """Raise unless `probs` are probabilities, (N, C) or (S, N, C), that sum to one over the last axis."""
    _check_class_axis(probs, dims, name)
    miss = (probs.sum(-1, dtype=torch.float64) - 1).abs().max()
    lowest, miss = torch.stack([probs.min().double(), miss]).tolist()
    if not (math.isfinite(lowest) and math.isfinite(miss)):
        raise ValueError(f"{name} must be finite, but it has NaN or infinite entries.")
    if lowest < 0:
        raise ValueError(f"{name} must not be negative, but its smallest entry is {lowest:.3g}.")
    if miss > _tolerance(probs):
        raise ValueError(f"{name} must sum to one over the classes, but one row misses it by {miss:.3g}.")


def check_log_probs(log_probs: Tensor) -> None:
    """Raise unless `log_probs` are log-probabilities (N, C); −inf is the logarithm of zero."""
    _check_class_axis(log_probs, 2, "log-probabilities")
    miss = log_probs.double().logsumexp(-1).abs().max().item()
    if math.isnan(miss):
        raise ValueError("log-probabilities must not be NaN.")
    if miss > _tolerance(log_probs):
        raise ValueError(f"log-probabilities must have a log-sum-exp of zero, but one row misses it by {miss:.3g}.")


def check_labels(labels: Tensor, probs: Tensor) -> Tensor:
    """Return `labels` as int64 (N,); raise unless they are one class index in 0..C−1 per row of `probs`."""
    check_integers(labels, probs, "probs")
    labels, classes = labels.long(), probs.shape[1]
    low, high = torch.stack(labels.aminmax()).tolist()
    if low < 0 or high >= classes:
        raise ValueError(f"labels must lie in 0..{classes - 1} for {classes} classes, got values in {low}..{high}.")
    return labels


def check_integers(labels: Tensor, rows: Tensor, name: str) -> None:
    """Raise unless `labels` are one integer for each of the rows called `name`, on the same device."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels must be a torch tensor, got {type(labels).__name__}.")
    if labels.dtype not in INTEGER:
        raise ValueError(f"labels must have an integer dtype, got {labels.dtype}.")
    if labels.shape != rows.shape[:1]:
        raise ValueError(f"labels must have shape ({len(rows)},) to match {name}, got {tuple(labels.shape)}.")
    if labels.device != rows.device:
        raise ValueError(f"labels are on {labels.device} but {name} are on {rows.device}.")


def check_classification(probs: Tensor, labels: Tensor) -> Tensor:
    """Check `probs` (N, C) and `labels` (N,) together and return the labels as int64."""
    check_probs(probs)
    return check_labels(labels, probs)


def check_scores(scores: Tensor, name: str, samples: int | None = None) -> Tensor:
    """Return one finite score per sample, (N,), in float64."""
    check_real(scores, name)
    if scores.ndim != 1:
        raise ValueError(f"{name} must have shape (N,), got {tuple(scores.shape)}.")
    if samples is not None and len(scores) != samples:
        raise ValueError(f"{name} must have one entry for each of the {samples} samples, got {len(scores)}.")
    return check_finite(scores, name).double()


def check_real(values: Tensor, name: str) -> None:
    """Raise unless `values` is a non-empty tensor of real numbers."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(values).__name__}.")
    if values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"{name} must hold real numbers, got {values.dtype}.")
    if values.numel() == 0:
        raise ValueError(f"{name} is empty: its shape is {tuple(values.shape)}.")


def check_finite(values: Tensor, name: str) -> Tensor:
    """Return `values` unless an entry is NaN or infinite."""
    if not bool(values.isfinite().all()):
        raise ValueError(f"{name} must be finite, but it has NaN or infinite entries.")
    return values


def check_whole(value: int, name: str, least: int = 1) -> None:
    """Raise unless a setting is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}.")


def check_choice(value: str, name: str, choices: tuple[str, ...]) -> None:
    """Raise unless a setting is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def _check_class_axis(probs: Tensor, dims: int, name: str) -> None:
    check_real(probs, name)
    if not probs.is_floating_point():
        raise ValueError(f"{name} must have a floating-point dtype, got {probs.dtype}.")
    if probs.ndim != dims:
        wanted = "(N, C)" if dims == 2 else "(S, N, C)"
        raise ValueError(f"{name} must have shape {wanted}, got {tuple(probs.shape)}.")


def _tolerance(probs: Tensor) -> float:
    """Return how far the sum of a row may be from one: 1e−3, or four times the machine epsilon if that is larger."""
    return max(1e-3, 4 * torch.finfo(probs.dtype).eps)
