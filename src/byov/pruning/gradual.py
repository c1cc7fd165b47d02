"""Gradual pruning: remove a few weights, fine-tune the rest with the masks held, and repeat."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from byov.posterior.module import BayesianModule
from byov.posterior.select import Predicate
from byov.pruning.masks import masked_tensors
from byov.pruning.unstructured import By, Scope, check, prune, weakest, weights


def cubic(sparsity: float, rounds: int) -> list[float]:
    """Return s·(1 − (1 − t/n)³) for t = 1 … n: many weights go at first, few at the end (Zhu and Gupta, 2017)."""
    return [sparsity * (1 - (1 - t / rounds) ** 3) for t in range(1, rounds + 1)]


def prune_gradually(
    model: nn.Module,
    fine_tune: Callable[[nn.Module], Any],
    sparsity: float = 0.9,
    rounds: int = 5,
    by: By = "snr",
    scope: Scope = "layer",
    where: Predicate = weights,
    schedule: Callable[[float, int], list[float]] = cubic,
    report: Callable[[float, nn.Module], Any] | None = None,
) -> nn.Module:
    """Return the plain network, pruned in `rounds` steps with `fine_tune(net)` after each; zeros stay zeros.

    The network handed to `fine_tune` is plain, in train mode, and has `torch.nn.utils.prune` masks: gradients reach
    only what is left, in whatever loop. It is the same object with the same parameters at every call, so that one
    optimizer may serve all rounds. By SNR, later rounds rank by |w|/σ with the weight w as it is by then and σ as the
    posterior has it: a few steps do not unlearn what the data said of a weight's precision.

    Args:
        model: as for `prune`; it is left as it is.
        fine_tune: trains the network it is given, for as long as it likes.
        sparsity: the share of zeros at the end.
        rounds: the number of steps to it; 1 is `prune` and one fine-tuning.
        by, scope, where: as for `prune`.
        schedule: (sparsity, rounds) -> the sparsity of each round, rising.
        report: called with (sparsity, net) after each fine-tuning.

    Example:
        >>> net = byov.pruning.prune_gradually(model, lambda net: train(net, epochs=1), 0.9)
    """
    check(model, sparsity, by, scope)
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"Gradual pruning takes at least one round, not {rounds!r}.")
    steps = schedule(sparsity, rounds)
    if not steps or any(b < a for a, b in pairwise(steps)) or not 0 <= steps[0] <= steps[-1] < 1:
        raise ValueError(f"A schedule's sparsities rise within [0, 1), unlike {steps}.")
    net = prune(model, steps[0], by, scope, where)
    deviation = model.std() if by == "snr" and isinstance(model, BayesianModule) else None
    for i, step in enumerate(steps):
        if i:
            _prune_further(net, step, scope, deviation)
        net.train()
        fine_tune(net)
        if report is not None:
            report(step, net)
    return net.eval()


@torch.no_grad()
def _prune_further(net: nn.Module, sparsity: float, scope: Scope, deviation: dict[str, Tensor] | None) -> None:
    """Enlarge the masks of a network to a sparsity; what is masked already goes first."""
    found = list(masked_tensors(net))
    scores, magnitudes = [], []
    for name, original, keep in found:
        if original.isnan().any():
            raise ValueError(f"{name} holds weights that are not numbers: fine-tuning has diverged.")
        magnitude = original.detach().abs().float()
        score = magnitude if deviation is None else torch.where(magnitude == 0, 0.0, magnitude / deviation[name])
        gone = keep == 0
        scores.append(score.masked_fill(gone, -1.0).flatten())
        magnitudes.append(magnitude.masked_fill(gone, -1.0).flatten())
    for (_, _, keep), gone in zip(found, weakest(scores, magnitudes, sparsity, scope), strict=True):
        keep.copy_(~gone.view(keep.shape).to(keep.device))
