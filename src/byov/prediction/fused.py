"""θ = μ + σ·ε of a large Gaussian on a CPU, noise and all, block by block.

Written as its formula, a draw of eleven million weights writes its noise, as large as θ, to memory and reads it back.
Here a block of noise becomes weights while the cache holds it, and every draw lies in the memory of the one before:
fresh memory has to be mapped and cleared page by page, which takes half as long again as the draw.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Generator, Tensor, nn

from byov.posterior import blocks
from byov.posterior.blocks import Floats
from byov.posterior.family import Noise
from byov.posterior.gaussian import Gaussian
from byov.posterior.module import BayesianModule
from byov.posterior.random import blockwise

MANY = 8
"""Draws from which σ is kept: mapping its memory takes about as long as computing it a few times over."""


class Fused:
    """The draws of a model whose posterior is one Gaussian: those of `model.tensors(noise)`, up to float32's rounding.

    What is random in one is the seeds of its blocks of noise, the same that `model.noise` would have drawn.
    """

    def __init__(self, model: BayesianModule, samples: int) -> None:
        self._model = model
        (self._factor,) = model.factors
        self._names = list(model.tensors())
        self._theta: Tensor | None = None
        self._std: Floats | None = np.empty(self._factor.layout.numel, np.float32) if samples >= MANY else None
        self._std_is_there = False

    @staticmethod
    def suits(model: BayesianModule) -> bool:
        """One Gaussian over many weights, on a CPU; for noise that is drawn there, too."""
        factor, *others = model.factors
        plain = all(
            type(role) is nn.Parameter and role.device.type == "cpu" and role.dtype == torch.float32
            for role in factor.roles.values()
        )
        return not others and type(factor.family) is Gaussian and plain and blockwise(factor.layout.numel)

    def refresh(self) -> None:
        """ρ may have changed."""
        self._std_is_there = False

    def noise(self, generator: Generator | None) -> list[Noise]:
        """The seeds (B,) of the next draw."""
        return [{"seeds": blocks.seeds(self._factor.layout.numel, self._model.source(generator))}]

    def __call__(self, seeds: Tensor) -> dict[str, Tensor]:
        """The weights under seeds (B,), in the memory of the draw before; or stacked (K, …) under seeds (K, B)."""
        layout = self._factor.layout
        if seeds.ndim > 1:
            theta = torch.empty(len(seeds), layout.numel)
        else:
            theta = self._theta = torch.empty(layout.numel) if self._theta is None else self._theta
        for row, own in zip(theta.view(-1, layout.numel), seeds.view(-1, seeds.shape[-1]), strict=True):
            self._draw(row, own)
        named = layout.with_ties(layout.split(theta))
        return {name: named[name] for name in self._names}

    def _draw(self, theta: Tensor, seeds: Tensor) -> None:
        """One draw; where there are to be many, with the first σ = exp(½ρ), which the others share."""
        mean, log_var = (self._factor.get_parameter(role).detach().numpy() for role in ("mean", "log_var"))
        kept, known = self._std, self._std_is_there

        def weights(block: Floats, where: slice, spare: Floats) -> None:
            std = spare if kept is None else kept[where]
            if not known:
                np.exp(np.multiply(log_var[where], np.float32(0.5), out=std), out=std)
            np.multiply(block, std, out=block)
            np.add(block, mean[where], out=block)

        blocks.fill(theta, seeds, weights)
        self._std_is_there = kept is not None
