"""What growing Gaussian noise on the images does to the variance after each part of a network (BYOV's Figure 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor, nn

from byov.exploration.drawing import COLOURS, MARKERS, canvas, log_labels, plain, styled
from byov.exploration.ranks import spearman
from byov.posterior.module import BayesianModule
from byov.posterior.random import stream
from byov.prediction.resident import Resident
from byov.prediction.result import Moments

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISE = (0.0, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0)
STAGES = ("encoder", "projector", "predictor")


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
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    batch_size: int = 512,
) -> NoiseVariance:
    """Send images (N, C, H, W) in [0, 1] with noise added, cut to [0, 1], through the stages under `samples` draws.

    Args:
        model: a posterior over a network whose modules named `stages` feed each other in that order.
        images: what noise is added to; every strength uses the same noise, scaled, and the same draws.
        noise: the standard deviations.
        samples: how many draws.
        seed: of noise and draws.
        stages: the modules' names.
        mean: per channel, subtracted from the noisy images.
        std: per channel, what they are then divided by.
        batch_size: a matter of memory only.
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
    eps = torch.randn(images.shape, generator=Generator().manual_seed(stream(seed, 0)))
    generator = Generator(device).manual_seed(stream(seed, 1))
    shift, scale = (None if v is None else torch.tensor(v, device=device).view(1, -1, 1, 1) for v in (mean, std))
    moments = [[Moments("regression") for _ in noise] for _ in stages]
    resident = Resident(model)
    with resident.installed():
        for _ in range(samples):
            resident.write(model.noise(generator))
            for level, strength in enumerate(noise):
                outputs: list[list[Tensor]] = [[] for _ in stages]
                for part, noisy in zip(images.split(batch_size), eps.split(batch_size), strict=True):
                    x = (part.float() + strength * noisy).clamp_(0.0, 1.0).to(device)
                    x = x if shift is None else x - shift
                    x = x if scale is None else x / scale
                    for out, stage in zip(outputs, stages, strict=True):
                        x = getattr(model.net, stage)(x)
                        out.append(x.float().flatten(1))
                for row, out in zip(moments, outputs, strict=True):
                    row[level].update(torch.cat(out)[None])
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


@styled
def noise_figure(found: Mapping[str, NoiseVariance]) -> Figure:
    """For each run a row: the stages against each other, a point per image coloured by noise; means against noise."""
    import matplotlib
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm

    made, panels = canvas(11.0, 2.7 * len(found) + 0.3, len(found), 4)
    for row, (run, n) in zip(panels, found.items(), strict=True):
        variance = torch.tensor(n.variance)
        palette = matplotlib.colormaps["viridis"].resampled(len(n.noise))
        edges = BoundaryNorm(range(len(n.noise) + 1), len(n.noise))
        level = torch.arange(len(n.noise))[:, None].expand(variance.shape[1:]).flatten()
        order = torch.randperm(len(level), generator=Generator().manual_seed(0))  # no strength hides another
        for axes, (i, j) in zip(row, combinations(range(len(n.stages)), 2), strict=False):
            x, y = variance[i].flatten()[order], variance[j].flatten()[order]
            axes.scatter(x, y, c=level[order], cmap=palette, norm=edges, s=5, alpha=0.6, linewidths=0)
            rank = n.correlation[f"{n.stages[i]}, {n.stages[j]}"]
            axes.set(xscale="log", yscale="log", xlabel=f"variance after {n.stages[i]}", ylabel=f"after {n.stages[j]}")
            axes.set_title(f"Spearman {rank:.2f}")
            plain(axes)
            log_labels(axes.xaxis, axes.yaxis)
        for axes in row[len(n.correlation) : 3]:
            axes.set_visible(False)
        shade = ScalarMappable(edges, palette)
        bar = made.colorbar(shade, ax=row[:3], pad=0.01, aspect=22, ticks=[i + 0.5 for i in range(len(n.noise))])
        bar.set_label("noise (std of pixels in 0…1)")
        bar.ax.set_yticklabels([f"{s:g}" for s in n.noise])
        last = row[3]
        for stage, values, colour, marker in zip(n.stages, variance, COLOURS, MARKERS, strict=False):
            middle = values.mean(1)
            relative = middle / middle[0]
            low, high = (torch.quantile(values, q, dim=1) / middle[0] for q in (0.25, 0.75))
            last.plot(n.noise, relative, color=colour, marker=marker, markersize=3.5, linewidth=1.2, label=stage)
            last.fill_between(n.noise, low, high, color=colour, alpha=0.15, linewidth=0)
        last.set(xlabel="noise", ylabel="variance, relative to no noise", yscale="log")
        last.set_title("mean and quartiles")
        log_labels(last.yaxis)
        last.legend()
        plain(last)
        if len(found) > 1:
            row[0].set_ylabel(f"{run}\n{row[0].get_ylabel()}")
    return made
