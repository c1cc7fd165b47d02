"""Pruning of single weights: zeros where |μ|/σ (Graves; Blundell et al.) or |μ| is smallest, per layer or globally.

Random pruning is a baseline for any ranking. Prune at once without retraining, or gradually: remove a few weights,
fine-tune the rest with the masks in place, and repeat.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as masks

from byov.posterior.layout import occurrences
from byov.posterior.module import BayesianModule
from byov.posterior.select import Predicate, norm_layers
from byov.pruning.masks import keep_output_masks, mask, masked_tensors

By = Literal["snr", "magnitude"]
Ranking = Literal["snr", "magnitude", "random"]
Scope = Literal["layer", "global"]


def weights(name: str, module: nn.Module, parameter: Tensor) -> bool:
    """Match the tensors pruned by default: two or more dimensions, not a bias and not in a normalisation layer.

    These are weights of linear layers, convolutions, attention and recurrent layers, embeddings, and a ViT's tokens.
    """
    leaf = name.rpartition(".")[2]
    return parameter.ndim >= 2 and "bias" not in leaf and not norm_layers(name, module, parameter)


@torch.no_grad()
def prune(
    model: nn.Module,
    sparsity: float = 0.5,
    by: Ranking = "snr",
    scope: Scope = "layer",
    where: Predicate = weights,
    seed: int = 0,
) -> nn.Module:
    """Return the plain network at the posterior mean, with a share `sparsity` of its weights set to zero.

    Section 4.4 of the BYOV paper: the single weights with the smallest |μ|/σ are removed, without retraining. The masks
    are those of `torch.nn.utils.prune`, whose `is_pruned` and `remove` work on the result; tied weights share one mask.

    Args:
        model: a BayesianModule, of which only weights with a posterior are pruned; or by magnitude any network. It is
            copied and not changed.
        sparsity: the share of zeros, in [0, 1). Exactly round(sparsity · n) of n weights are removed; of equal ones
            first those with the smallest |μ|, then the first ones.
        by: "snr", |μ|/σ, infinite where σ is 0; "magnitude", |μ|; or "random", where all weights are equally likely to
            be removed.
        scope: "layer" prunes this share of every tensor, "global" of all tensors together.
        where: which tensors, a predicate (name, module, parameter) -> bool; see `weights`.
        seed: for "random". Weights removed at one sparsity are also removed at every higher one.

    `copy.deepcopy` works on the result until it is called with gradients on; after that torch requires `remove` first.

    Example:
        >>> net = byov.prune(byov.bayesianize(nn.Linear(4, 2), byov.Gaussian()), 0.75)
        >>> int((net.weight == 0).sum())
        6
    """
    check(model, sparsity, by, scope, get_args(Ranking))
    posterior = model if isinstance(model, BayesianModule) else None
    net = plain_copy(model)
    covered = None if posterior is None else set(posterior.covered())
    chosen = [
        (parameter, places)
        for parameter, places in occurrences(net)
        if (covered is None or places[0][0] in covered) and any(where(name, m, parameter) for name, m in places)
    ]
    if not chosen:
        which = "exists" if posterior is None else "has a posterior"
        raise ValueError(f"There is nothing to prune: no weight that `where` selects {which}.")
    scores = magnitudes = [parameter.abs().flatten() for parameter, _ in chosen]
    if by == "snr" and posterior is not None:
        snr = posterior.snr()
        scores = [snr[places[0][0]].flatten() for _, places in chosen]
    if by == "random":
        chance = torch.Generator().manual_seed(seed)  # float64 has no ties that the magnitude would break
        scores = [torch.rand(len(m), generator=chance, dtype=torch.float64).to(m.device) for m in magnitudes]
    for score, (_, places) in zip(scores, chosen, strict=True):
        check_ordered(score, places[0][0])

    pruned = lowest_scores(scores, magnitudes, sparsity, scope)
    for (parameter, places), gone in zip(chosen, pruned, strict=True):
        mask(places, ~gone.view(parameter.shape).to(parameter.device))
    return keep_output_masks(net)


def sweep(
    model: nn.Module,
    sparsities: Iterable[float],
    evaluate: Callable[[nn.Module], float],
    by: Ranking = "snr",
    scope: Scope = "layer",
    where: Predicate = weights,
    seed: int = 0,
) -> list[tuple[float, float]]:
    """Return (sparsity, evaluate(pruned network in eval mode)) for each sparsity: the curve of Figure 4, left."""
    wanted = list(sparsities)
    for sparsity in wanted:
        check(model, sparsity, by, scope, get_args(Ranking))
    return [(sparsity, evaluate(prune(model, sparsity, by, scope, where, seed).eval())) for sparsity in wanted]


def cubic(sparsity: float, rounds: int) -> list[float]:
    """Return s·(1 − (1 − t/n)³) for t = 1 … n: many weights at first, few at the end (Zhu and Gupta, 2017)."""
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

    The network passed to `fine_tune` is plain, in train mode, and has `torch.nn.utils.prune` masks: in any training
    loop, gradients reach only the remaining weights. It is the same object with the same parameters at every call, so
    one optimizer can be used for all rounds. By SNR, later rounds rank by |w|/σ with the current weight w and the σ of
    the posterior: a few steps do not change what the data determined about a weight's precision.

    Args:
        model: as for `prune`; it is not changed.
        fine_tune: a function that trains the given network, for any number of steps.
        sparsity: the share of zeros at the end.
        rounds: the number of pruning steps; 1 is `prune` and one fine-tuning.
        by, scope, where: as for `prune`.
        schedule: (sparsity, rounds) -> the increasing sparsities of the rounds.
        report: called with (sparsity, net) after each fine-tuning.

    Example:
        >>> net = byov.pruning.prune_gradually(model, lambda net: train(net, epochs=1), 0.9)
    """
    check(model, sparsity, by, scope)
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"Gradual pruning takes at least one round, not {rounds!r}.")
    steps = schedule(sparsity, rounds)
    if not steps or any(b < a for a, b in pairwise(steps)) or not 0 <= steps[0] <= steps[-1] < 1:
        raise ValueError(f"A schedule's sparsities increase within [0, 1), unlike {steps}.")
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
    """Extend the masks of a network to a sparsity; weights that are already masked rank lowest."""
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
    for (_, _, keep), gone in zip(found, lowest_scores(scores, magnitudes, sparsity, scope), strict=True):
        keep.copy_(~gone.view(keep.shape).to(keep.device))


def check(model: nn.Module, sparsity: float, by: str, scope: str, allowed: tuple[str, ...] = get_args(By)) -> None:
    """Raise if the model cannot be pruned in this way, before anything is copied."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"prune takes a torch.nn.Module, not {type(model).__name__}.")
    if isinstance(sparsity, bool) or not isinstance(sparsity, int | float) or not 0 <= sparsity < 1:
        raise ValueError(f"A sparsity is at least 0 and below 1, not {sparsity!r}.")
    if by not in allowed:
        raise ValueError(f"Pruning here ranks by {' or '.join(allowed)}, not by {by!r}.")
    if scope not in get_args(Scope):
        raise ValueError(f"The scope of pruning is layer or global, not {scope!r}.")
    if by == "snr" and not isinstance(model, BayesianModule):
        raise ValueError(
            "A network without a posterior has no σ to prune by: bayesianize it, or prune by magnitude"
            " (--by magnitude, in Python by='magnitude')."
        )
    if any(isinstance(part, BayesianModule) for part in model.modules() if part is not model):
        raise ValueError("The posterior is over a part of this module only: prune that part.")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise ValueError("The network has lazy parameters without a shape: call it once before pruning.")
    if masks.is_pruned(model):
        raise ValueError("The network is already pruned: make that permanent first, with torch.nn.utils.prune.remove.")


def check_ordered(scores: Tensor, name: str) -> None:
    """Raise if a score is NaN."""
    if scores.isnan().any():
        raise ValueError(f"{name} holds weights that are not numbers: they cannot be ranked.")


def plain_copy(model: nn.Module) -> nn.Module:
    """Return the plain network to prune: that at the posterior mean, or a copy of a network without a posterior."""
    return model.point() if isinstance(model, BayesianModule) else copy.deepcopy(model)


def lowest_scores(scores: list[Tensor], magnitudes: list[Tensor], sparsity: float, scope: Scope) -> list[Tensor]:
    """Mark the share `sparsity` of smallest scores, in each of these flat tensors or in all together."""
    if scope == "layer":
        return [lowest(*pair, round(sparsity * len(pair[0]))) for pair in zip(scores, magnitudes, strict=True)]
    sizes, home = [len(score) for score in scores], scores[0].device
    score, magnitude = (torch.cat([part.to(home) for part in parts]) for parts in (scores, magnitudes))
    return list(lowest(score, magnitude, round(sparsity * sum(sizes))).split(sizes))


def lowest(scores: Tensor, magnitudes: Tensor, count: int) -> Tensor:
    """Mark the `count` smallest scores; of equal scores the smallest magnitudes, of equal magnitudes the first."""
    if count == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    scores = scores.float() if scores.dtype.itemsize < 4 else scores
    last = scores.kthvalue(count).values
    marked = scores < last
    ties = (scores == last).nonzero().squeeze(1)
    order = magnitudes[ties].argsort(stable=True)
    marked[ties[order[: count - int(marked.sum())]]] = True
    return marked
