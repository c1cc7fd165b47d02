"""How does the variance over draws change as noise on the images grows? BYOV's Figure 7."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Unpack

import torch
from torch import Generator, Tensor, nn

from byov.evaluation.representation import STAGES, stage_outputs
from byov.evaluation.resampling import spearman
from byov.posterior.module import BayesianModule
from byov.posterior.random import stream
from byov.prediction.resident import Resident
from byov.prediction.result import Moments
from byov.ssl.features import ImageOptions

NOISE = (0.0, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0)


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
