"""The networks of one shape: their stack, their streams of noise, and the minibatches they see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from byov.data.tables import moments
from byov.posterior import ECMP, EMP, Dropout, Family
from byov.posterior.random import stream
from byov.train.regression import families as of
from byov.train.regression.fitted import Split
from byov.train.regression.stack import EPS, MOMENTUM, Normed, Plain, Stack

if TYPE_CHECKING:
    from byov.train.regression.fitting import Settings


@dataclass(frozen=True)
class Data:
    """A split's standardised training rows, what standardised them, and the seed of its streams."""

    x: Tensor
    y: Tensor
    moments: tuple[Tensor, Tensor, Tensor, Tensor]
    seed: int

    @classmethod
    def of(cls, X: Tensor, y: Tensor, rows: Tensor, seed: int, device: torch.device) -> Data:
        kept = (*moments(X[rows]), *moments(y[rows]))
        x, y = (X[rows] - kept[0]) / kept[1], (y[rows] - kept[2]) / kept[3]
        x_mean, x_std, y_mean, y_std = (moment.to(device) for moment in kept)
        return cls(x.float().to(device), y.float().to(device), (x_mean, x_std, y_mean, y_std), seed)

    def generator(self, stream_of: int) -> Generator:
        """The split's own stream: 0 shuffles its rows, the others are its families' noise."""
        return Generator(self.x.device).manual_seed(stream(self.seed, 1 << 10, stream_of))


def minibatches(
    splits: Sequence[Data], order: Sequence[Generator], epochs: int, steps: int, size: int
) -> tuple[Tensor, Tensor]:
    """Every split's rows shuffled anew for each epoch: x (steps, S, D, N) and y (steps, S, 1, T, N)."""
    xs, ys = [], []
    for split, generator in zip(splits, order, strict=True):
        rows = len(split.x)
        if split.x.is_cuda:
            index = torch.rand((epochs, rows), generator=generator, device=split.x.device).argsort(1)
        else:
            index = torch.stack([torch.randperm(rows, generator=generator) for _ in range(epochs)])
        index = index[:, : steps * size].reshape(epochs * steps, size)
        xs.append(split.x[index])
        ys.append(split.y[index])
    x, y = (torch.stack(part, 1).transpose(2, 3).contiguous() for part in (xs, ys))
    return x, y.unsqueeze(2)


class Group:
    """The families whose networks have one shape: their stack, their streams, and BatchNorm's moments of the inputs.

    `families` are by name; the same family under several names sees the same noise, each with a weight decay of its
    own: `decay[name]` has one for every split.
    """

    def __init__(
        self,
        splits: Sequence[Data],
        families: Mapping[str, Family],
        decay: Mapping[str, Sequence[float]],
        settings: Settings,
    ) -> None:
        self.splits, self.families, self.decay = splits, families, decay
        self.features, self.units, targets = splits[0].x.shape[1], settings.hidden, splits[0].y.shape[1]
        self.normed = any(of.normed(family) for family in families.values())
        weights, decays = [], []
        for s, split in enumerate(splits):
            for name, family in families.items():
                shape = self.features, self.units, targets
                weights.append(of.initial(family, split.seed, *shape, settings.gamma))
                decays += [decay[name][s]] * of.members(family)
        parts = [torch.cat(part).to(splits[0].x) for part in zip(*weights, strict=True)]
        self.noise = [{f: s.generator(of.NUMBER[type(f)]) for f in set(families.values())} for s in splits]
        kind: type[Stack] = Plain
        if self.normed:
            k = next(iter(families.values())).k  # type: ignore[attr-defined]
            start = parts[0].new_zeros(2 * self.features + 2 * self.units)
            start[: self.features] = start[2 * self.features : -self.units] = settings.gamma
            parts.append(start.expand(len(parts[0]), k, -1))
            kind = Normed
        self.stack = kind(parts, len(splits), settings.lr, parts[0].new_tensor(decays))
        self.mean = parts[0].new_zeros(len(splits), self.features)
        self.var = torch.ones_like(self.mean)

    def chunk(self, x: Tensor) -> list[Tensor]:
        """The inputs with a row of ones, normalised by their minibatch where the network does so; and the noise."""
        if self.normed:
            mean = x.mean(3, keepdim=True)
            x = x - mean
            var = x.square().mean(3, keepdim=True)  # torch.var_mean is slow on a CPU
            self._track(mean[..., 0], var[..., 0] * (x.shape[3] / (x.shape[3] - 1)))
            x.mul_((var + EPS).rsqrt())
        x = torch.cat([x, x.new_ones(*x.shape[:2], 1, x.shape[3])], 2)
        drawn = []
        for generators in self.noise:
            of_split = {family: self._noise(family, x, generator) for family, generator in generators.items()}
            drawn += [of_split[f] for f in self.families.values() for _ in range(of.members(f))]
        noise = torch.stack(drawn, 1).unsqueeze(2)  # (steps, B, 1, …)
        if self.normed:
            return [x, noise]
        inputs, hidden = noise.split([self.features, self.units], 3)
        return [x, torch.cat([inputs, inputs.new_ones(*inputs.shape[:3], 1)], 3), hidden.contiguous()]

    def _noise(self, family: Family, x: Tensor, generator: Generator) -> Tensor:
        """One network's noise for every step, (steps, 2D + 2H) or (steps, D + H)."""
        if isinstance(family, EMP | ECMP):
            return of.assignment(family, len(x), self.features, self.units, x, generator)
        if isinstance(family, Dropout):
            return of.factors(family, len(x), self.features, self.units, x, generator)
        return x.new_ones(len(x), self.features + self.units)

    def _track(self, mean: Tensor, var: Tensor) -> None:
        """BatchNorm's running moments after many steps, at once."""
        keep = 1.0 - MOMENTUM
        weight = MOMENTUM * keep ** torch.arange(len(mean) - 1, -1, -1, device=mean.device)
        self.mean = keep ** len(mean) * self.mean + torch.einsum("n,nsd->sd", weight, mean)
        self.var = keep ** len(var) * self.var + torch.einsum("n,nsd->sd", weight, var)

    def result(self) -> dict[str, list[Split]]:
        """Every family's networks, split by split."""
        count = sum(of.members(family) for family in self.families.values())
        done: dict[str, list[Split]] = {name: [] for name in self.families}
        stack, start = self.stack, 0
        for name, family in self.families.items():
            for s, split in enumerate(self.splits):
                here = slice(s * count + start, s * count + start + of.members(family))
                patches, kept = None, None
                if isinstance(stack, Normed):
                    patches = stack.patches[here].clone()
                    mean, var = (m.view(-1, self.units)[here][0].clone() for m in (stack.mean, stack.var))
                    kept = (self.mean[s].clone(), self.var[s].clone(), mean, var)
                first, second, bias = (part[here].clone() for part in (stack.first, stack.second, stack.bias))
                done[name].append(
                    Split(first, second, bias, patches, kept, *split.moments, split.seed, self.decay[name][s])
                )
            start += of.members(family)
        return done
