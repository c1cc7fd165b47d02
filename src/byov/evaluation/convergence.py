"""How many draws are enough? BYOV's Figure 5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from byov.evaluation.scores import main_scores
from byov.posterior.random import stream
from byov.prediction.result import entropy

SCORED_COUNTS = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200)
"""The numbers of draws at which scores are computed."""


@dataclass(frozen=True)
class Convergence:
    """Averages over the images for each number of draws K. A `spread` is a standard deviation over bootstraps.

    Attributes:
        draws: the numbers of draws K.
        mean: the predictive mean of the probability of one class per image: the one predicted by all draws together.
        mean_spread: the spread of `mean`.
        std: the standard deviation of that probability over K draws (divided by K, so it is 0 for one draw).
        std_spread: the spread of `std`.
        image_spread: the spread of a single image's predictive mean; it falls as 1/√K.
    """

    draws: list[int]
    mean: list[float]
    mean_spread: list[float]
    std: list[float]
    std_spread: list[float]
    image_spread: list[float]


def convergence(
    draws: Tensor, counts: Sequence[int] = range(1, 51), bootstraps: int = 50, seed: int = 0
) -> Convergence:
    """Compute convergence from class probabilities (S, N, C), resampling K of the S draws with replacement."""
    if draws.ndim != 3 or not draws.numel():
        raise ValueError(f"Convergence needs class probabilities (S, N, C) under S draws, not {tuple(draws.shape)}.")
    if len(draws) < 2 or bootstraps < 2 or not counts or min(counts) < 1:
        raise ValueError("Convergence needs at least two draws, two bootstraps, and numbers of draws of at least 1.")
    chosen = draws.double().mean(0).argmax(1)
    values = draws.double().gather(2, chosen.expand(len(draws), -1)[..., None]).squeeze(2)
    # Each bootstrap takes the first K of one sequence of draws, so changes with K do not come from other draws.
    generator = Generator().manual_seed(stream(seed, 0))
    picked = torch.randint(len(draws), (bootstraps, max(counts)), generator=generator).to(values.device)
    rows = []
    for count in counts:
        share = torch.zeros(bootstraps, len(draws), dtype=values.dtype, device=values.device)
        share.scatter_add_(1, picked[:, :count], share.new_full((bootstraps, count), 1.0 / count))
        mean = share @ values
        std = (share @ values.square() - mean.square()).clamp_min(0.0).sqrt()
        over_images = torch.stack([mean.mean(1), std.mean(1)])
        average, spread = over_images.mean(1), over_images.std(1)
        rows.append([average[0], spread[0], average[1], spread[1], mean.std(0).mean()])
    columns = torch.tensor(rows, dtype=torch.float64).T.tolist()
    return Convergence(list(counts), *columns)


def score_convergence(draws: Tensor, labels: Tensor, bins: int = 15, bootstraps: int = 30) -> dict[str, Any]:
    """Score the mean of K draws, resampled with replacement from class probabilities (S, N, C).

    Returns:
        {"draws": [K, …], score: {"mean": […], "deviation": […]}}: means and standard deviations over the resamples.
    """
    size = len(draws)
    counts = [count for count in SCORED_COUNTS if count < size] + [size]
    entropies = torch.stack([entropy(each) for each in draws])
    found: dict[str, Any] = {"draws": counts}
    for count in counts:
        generator = Generator().manual_seed(stream(0, count))
        rows = []
        for chosen in torch.randint(size, (bootstraps, count), generator=generator):
            probs = draws[chosen].mean(0)
            information = (entropy(probs) - entropies[chosen].mean(0)).clamp_min(0.0).mean().item()
            rows.append({**main_scores(probs, labels, bins), "mutual_information": information})
        table = torch.tensor([list(row.values()) for row in rows], dtype=torch.float64)
        for i, name in enumerate(rows[0]):
            column = found.setdefault(name, {"mean": [], "deviation": []})
            column["mean"].append(float(table[:, i].mean()))
            column["deviation"].append(float(table[:, i].std()))
    return found
