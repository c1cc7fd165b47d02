"""How does the variance over draws change with noise on the images? BYOV's Figure 7."""

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
    """The variance over draws after each stage, averaged over its outputs, by stage, noise level and image.

    `correlation` holds Spearman's correlation of two stages over all images and noise levels. `variation` holds each
    stage's relative standard deviation (std/mean) over the images at each noise level, our reading of appendix F,
    where "variation in the variances decreases". Stages that the draws do not change, because the posterior covers
    nothing up to them, are left out.
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
    """Pass noisy images (N, C, H, W), clipped to [0, 1], through the stages under `samples` draws.

    Args:
        model: a posterior over a network whose modules named in `stages` feed each other in that order.
        images: the images in [0, 1]; every noise level uses the same noise, scaled, and the same draws.
        noise: the standard deviations of the noise.
        samples: the number of draws.
        seed: the seed of noise and draws.
        stages: the names of the modules.
        options: `ImageOptions`, including the `mean` and `std` that standardise the noisy images.
    """
    if not isinstance(model, BayesianModule):
        raise TypeError(f"Variance under draws needs a BayesianModule, not {type(model).__name__}.")
    missing = [stage for stage in stages if not isinstance(getattr(model.net, stage, None), nn.Module)]
    if missing:
        raise ValueError(f"The network has no module {missing[0]!r}; the stages are {', '.join(stages)}.")
    if samples < 2 or not noise or min(noise) < 0:
        raise ValueError("Variance under noise needs at least two draws, and noise levels of at least 0.")
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
        raise ValueError("The draws change none of the stages: the posterior covers none of them.")
    variance, names = variance[varied], [stages[i] for i in varied]
    ranks = {
        f"{names[i]}, {names[j]}": spearman(variance[i].flatten().numpy(), variance[j].flatten().numpy())
        for i, j in combinations(range(len(names)), 2)
    }
    variation = (variance.std(2, correction=0) / variance.mean(2)).tolist()
    return NoiseVariance(names, [float(s) for s in noise], variance.tolist(), ranks, variation)
