"""Accuracy and the log score: the two numbers every classifier reports."""

import torch
from torch import Tensor

from byov.metrics.functional._checks import (
    check_classification,
    check_labels,
    check_log_probs,
    check_probs,
    check_whole,
)


def accuracy(probs: Tensor, labels: Tensor, top_k: int = 1) -> Tensor:
    """Fraction of samples whose label is among the `top_k` most probable classes.

    Between equal probabilities the lower class index comes first, as in `argmax`, so a constant forecast scores the
    frequency of classes 0..k−1 and not one.

    Args:
        probs: (N, C), each row on the simplex.
        labels: (N,), integers in 0..C−1.
        top_k: 1..C.

    Returns:
        A float64 scalar in 0..1.

    Example:
        >>> import torch
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
    """Negative log-likelihood of the labels, −(1/N) Σᵢ log pᵢ(yᵢ), in nats.

    A probability that underflowed to zero would make the mean infinite, so p is held at or above the smallest normal
    number of its dtype (float32: 1.2e−38, at most 87.3 nats per sample). A larger floor, such as the machine epsilon,
    would flatter confident mistakes. With `log_input=True` the first argument holds log-probabilities and nothing is
    clamped.

    Args:
        probs: (N, C), each row on the simplex; or its logarithm, where −inf is allowed.
        labels: (N,), integers in 0..C−1.
        log_input: read the first argument as log-probabilities.

    Returns:
        A non-negative float64 scalar.

    Example:
        >>> import torch
        >>> probs = torch.tensor([[0.5, 0.5], [0.25, 0.75]], dtype=torch.float64)
        >>> labels = torch.tensor([0, 1])
        >>> round(nll(probs, labels).item(), 6)
        0.490415
        >>> round(nll(probs.log(), labels, log_input=True).item(), 6)
        0.490415
    """
    if log_input:
        check_log_probs(probs)
    else:
        check_probs(probs)
    labels = check_labels(labels, probs)
    own = probs.gather(1, labels[:, None]).double()
    log_likelihood = own if log_input else own.clamp_min(torch.finfo(probs.dtype).tiny).log()
    return -log_likelihood.mean()
