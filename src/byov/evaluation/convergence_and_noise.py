"""What draws say: how many are enough (BYOV's Figure 5), and how they vary as noise on the images grows (Figure 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Unpack

import torch
from torch import Generator, Tensor, nn

from byov.evaluation.representation import STAGES, stage_outputs
from byov.evaluation.resampling import spearman
from byov.evaluation.scores import main_scores
from byov.posterior.module import BayesianModule
from byov.posterior.random import stream
from byov.prediction.resident import Resident
from byov.prediction.result import Moments, entropy
from byov.ssl.features import ImageOptions

SCORED_COUNTS = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200)
"""The numbers of draws at which scores are read."""
NOISE = (0.0, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0)


# The number of draws


@dataclass(frozen=True)
class Convergence:
    """Averages over the images, for each number of draws K; every `spread` is a deviation over bootstraps.

    Attributes:
        draws: the numbers of draws K.
        mean: the predictive mean of the probability of each image's class: the class that all draws together predict.
        mean_spread: of that average.
        std: the standard deviation of that probability over K draws (divided by K, so that one draw has none).
        std_spread: of that average.
        image_spread: the deviation over bootstraps of a single image's predictive mean: falls as 1/√K.
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
    """Compute it from class probabilities (S, N, C): sets of K draws are drawn from the S, with replacement."""
    if draws.ndim != 3 or not draws.numel():
        raise ValueError(f"Convergence is of class probabilities (S, N, C) under S draws, not {tuple(draws.shape)}.")
    if len(draws) < 2 or bootstraps < 2 or not counts or min(counts) < 1:
        raise ValueError("Convergence needs at least two draws, two bootstraps, and numbers of draws from 1.")
    chosen = draws.double().mean(0).argmax(1)
    values = draws.double().gather(2, chosen.expand(len(draws), -1)[..., None]).squeeze(2)
    # Each bootstrap is one sequence of draws, of which K are taken: what moves along K is then not the choice of draws.
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
    """Score the mean of K draws, for sets of K that are drawn with replacement from class probabilities (S, N, C).

    Returns:
        {"draws": [K, …], score: {"mean": […], "deviation": […]}}, mean and deviation over the sets.
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


# Noise on the images


@dataclass(frozen=True)
class NoiseVariance:
    """The variance over draws after each stage, the mean over its outputs, by stage, strength of noise and image.

    `correlation` holds Spearman's between two stages over all images and strengths, `variation` each stage's relative
    deviation (std/mean) over the images at each strength: the paper sees it fall. Stages that draws do not change,
    since the posterior covers nothing up to there, are left out.
    """

    stages: list[str]
    noise: list[float]
    variance: list[list[list[float]]]
    correlation: dict[str, float]
    variation: list[list[float]]


@torch.no_grad()
def noise_variance(
    model: BayesianModule,
    images: Tensor,
    noise: Sequence[float] = NOISE,
    samples: int = 50,
    seed: int = 0,
    stages: Sequence[str] = STAGES,
    **options: Unpack[ImageOptions],
) -> NoiseVariance:
    """Send images (N, C, H, W) in [0, 1] with noise added, cut to [0, 1], through the stages under `samples` draws.

    Args:
        model: a posterior over a network whose modules named `stages` feed each other in that order.
        images: what noise is added to; every strength uses the same noise, scaled, and the same draws.
        noise: the standard deviations.
        samples: how many draws.
        seed: of noise and draws.
        stages: the modules' names.
        options: `ImageOptions`, among them the `mean` and `std` that noisy images are standardised by.
    """
    if not isinstance(model, BayesianModule):
        raise TypeError(f"Variance under draws is of a BayesianModule, not of {type(model).__name__}.")
    missing = [stage for stage in stages if not isinstance(getattr(model.net, stage, None), nn.Module)]
    if missing:
        raise ValueError(
            f"The network has no part called {missing[0]!r}; noise is followed through {', '.join(stages)}."
        )
    if samples < 2 or not noise or min(noise) < 0:
        raise ValueError("Variance under noise needs at least two draws, and strengths of noise from 0.")
    device = next(model.q.parameters()).device
    how: ImageOptions = {"device": device, **options}
    eps = torch.randn(images.shape, generator=Generator().manual_seed(stream(seed, 0)))
    generator = Generator(device).manual_seed(stream(seed, 1))
    parts = [getattr(model.net, stage) for stage in stages]
    moments = [[Moments("regression") for _ in noise] for _ in stages]
    resident = Resident(model)
    with resident.installed():
        for _ in range(samples):
            resident.write(model.noise(generator))
            for level, strength in enumerate(noise):
                noisy = (images.float() + strength * eps).clamp_(0.0, 1.0)
                for row, output in zip(moments, stage_outputs(parts, noisy, **how), strict=True):
                    row[level].update(output[None])
    variance = torch.stack([torch.stack([(m.square / m.count).mean(1) for m in row]) for row in moments]).double().cpu()
    varied = [i for i in range(len(stages)) if bool((variance[i] > 0).all())]
    if not varied:
        raise ValueError("The draws make no difference after any of the parts: the posterior covers none of them.")
    variance, names = variance[varied], [stages[i] for i in varied]
    ranks = {
        f"{names[i]}, {names[j]}": spearman(variance[i].flatten().numpy(), variance[j].flatten().numpy())
        for i, j in combinations(range(len(names)), 2)
    }
    variation = (variance.std(2, correction=0) / variance.mean(2)).tolist()
    return NoiseVariance(names, [float(s) for s in noise], variance.tolist(), ranks, variation)
