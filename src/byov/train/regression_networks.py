"""Many small regression networks trained as one, with a leading batch dimension on every weight.

The last dimension is for rows: an activation is (B, units, rows), so that BatchNorm has B·units channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import batch_norm, mse_loss

from byov.data.tables import Scale
from byov.models import regression_mlp
from byov.posterior import ECMP, EMP, BayesianModule, Dropout, Ensemble, Family, bayesianize, norm_layers
from byov.posterior.random import categorical, stream, uniform
from byov.train import Diverged

AHEAD = 128
"""Approximate number of steps whose minibatches and noise are drawn at once; always whole epochs."""

NUMBER = {EMP: 1, ECMP: 2, Dropout: 3, Ensemble: 4}
"""The random stream of each family."""


@dataclass(frozen=True)
class Settings:
    """Appendix D.7 of the patching paper: one hidden layer, Adam at its defaults, L2 on every variational parameter."""

    hidden: int = 50
    epochs: int = 4000
    batch: int = 100
    """Maximum number of rows per step: an epoch is split into ⌈n/batch⌉ minibatches of equal size."""
    lr: float = 1e-3
    weight_decay: float | tuple[float, ...] = 0.01
    """λ, as in torch's Adam. From several values, one is chosen for each split and family on held-out rows."""
    held: float = 0.2
    """Fraction of a split's training rows held out for choosing λ."""
    trial: float = 0.25
    """Fraction of the epochs for which each λ is tried."""
    gamma: float = 0.2

    @property
    def grid(self) -> tuple[float, ...]:
        return self.weight_decay if isinstance(self.weight_decay, tuple) else (self.weight_decay,)

    def __post_init__(self) -> None:
        sizes = self.hidden, self.epochs, self.batch
        if min(sizes) < 1:
            raise ValueError(f"hidden, epochs and batch are at least 1, not {', '.join(map(str, sizes))}.")
        if not (isfinite(self.lr) and self.lr > 0 and self.grid and all(isfinite(d) and d >= 0 for d in self.grid)):
            raise ValueError(f"lr is above 0 and weight_decay at least 0, not {self.lr} and {self.weight_decay}.")
        if not (0 < self.held < 1 and 0 < self.trial <= 1):
            raise ValueError(f"held and trial are shares, above 0 and at most 1, not {self.held} and {self.trial}.")

    def cut(self, rows: int) -> tuple[int, int]:
        """Return the minibatches per epoch and the rows in each; the few remaining rows are skipped in that epoch."""
        steps = ceil(rows / self.batch)
        return steps, rows // steps


@dataclass(frozen=True)
class Data:
    """A split's standardised training rows, their scales, and the seed of its random streams."""

    x: Tensor
    y: Tensor
    x_scale: Scale
    y_scale: Scale
    seed: int

    @classmethod
    def of(cls, X: Tensor, y: Tensor, rows: Tensor, seed: int, device: torch.device) -> Data:
        X, y = X[rows].to(device), y[rows].to(device)
        scales = Scale.of(X), Scale.of(y)
        return cls(scales[0].standardise(X).float(), scales[1].standardise(y).float(), *scales, seed)

    def generator(self, stream_of: int) -> Generator:
        """Return a generator for one of the split's streams: 0 is for shuffling, the others for the families' noise."""
        return Generator(self.x.device).manual_seed(stream(self.seed, 1 << 10, stream_of))

    def minibatches(self, generator: Generator, epochs: int, steps: int, size: int) -> tuple[Tensor, Tensor]:
        """Shuffle the rows for each epoch; return x (epochs·steps, D, size) and y (epochs·steps, T, size)."""
        device, rows = self.x.device, len(self.x)
        orders = [torch.randperm(rows, generator=generator, device=device)[: steps * size] for _ in range(epochs)]
        index = torch.cat(orders).view(epochs * steps, size)
        return self.x[index].transpose(1, 2), self.y[index].transpose(1, 2)


@dataclass(frozen=True)
class Split:
    """One split's posterior, over a network that takes and returns standardised numbers."""

    model: BayesianModule
    x_scale: Scale
    y_scale: Scale
    seed: int
    weight_decay: float


def has_batchnorm(family: Family) -> bool:
    """Check whether there are BatchNorm layers: EMP and ECMP patch them, the other two have none (Appendix D.7)."""
    return isinstance(family, EMP | ECMP)


def noise(family: Family, draws: int, features: int, hidden: int, like: Tensor, generator: Generator) -> Tensor:
    """Draw the noise of a network, `draws` times.

    EMP and ECMP: Z of equations (4) and (5) for γ₁, β₁, γ₂, β₂, (draws, 2D + 2H), the same within a layer (EMP) or per
    element (ECMP). Dropout: the factor of each input and hidden unit, (draws, D + H), 0 or 1/(1 − p). Ensemble:
    nothing.
    """
    if isinstance(family, ECMP):
        return categorical((draws, 2 * features + 2 * hidden), family.mixing, like, generator)
    if isinstance(family, EMP):
        z = categorical((draws, 2), family.mixing, like, generator)
        return torch.cat([z[:, :1].expand(-1, 2 * features), z[:, 1:].expand(-1, 2 * hidden)], 1)
    if isinstance(family, Dropout):
        return (uniform((draws, features + hidden), like, generator) >= family.p) / (1.0 - family.p)
    return like.new_empty(draws, 0)


def parameters(net: nn.Module, kind: type[nn.Module]) -> list[Tensor]:
    """List the weights and biases of all layers of one type."""
    return [p.detach() for layer in net.children() if isinstance(layer, kind) for p in layer.parameters()]


class Networks:
    """B networks  x → (norm) → Linear → ReLU → (norm) → Linear  of one family, and their optimizer.

    Every split has one for each of its weight decays and, for an explicit ensemble, each member; all of them see the
    same minibatches and the same noise. The decay is L2, as in torch's Adam, with a separate λ for each network.
    """

    def __init__(
        self, family: Family, splits: Sequence[Data], decays: Sequence[Sequence[float]], settings: Settings
    ) -> None:
        self.family, self.splits, self.decays, self.settings = family, splits, decays, settings
        self.members = range(family.k if isinstance(family, Ensemble) else 1)
        self.each = len(decays[0]) * len(self.members)
        like, widths = splits[0].x, [splits[0].x.shape[1], settings.hidden]
        self.nets = [
            self._initial(split.seed, member) for split in splits for _ in decays[0] for member in self.members
        ]
        stacked = [torch.stack(each) for each in zip(*(parameters(n, nn.Linear) for n in self.nets), strict=True)]
        parts = [part if part.ndim == 3 else part.unsqueeze(2) for part in stacked]  # a bias is (B, units, 1)
        self.sizes = [] if isinstance(family, Ensemble) else widths
        self.moments: list[Tensor] = []
        if has_batchnorm(family):
            patch = torch.stack([torch.cat(parameters(net, nn.BatchNorm1d)) for net in self.nets])
            parts.append(patch.unsqueeze(1).repeat(1, family.k, 1))  # type: ignore[attr-defined]
            self.sizes = [width for width in widths for _ in ("γ", "β")]
            self.moments = [new(len(patch) * width) for width in widths for new in (like.new_zeros, like.new_ones)]
        self.parts = [nn.Parameter(part.to(like)) for part in parts]
        decay = like.new_tensor([d for own in decays for d in own for _ in self.members])
        self.decay = [decay.view(-1, *[1] * (part.ndim - 1)) for part in parts]
        self.optimizer = torch.optim.Adam(self.parts, lr=settings.lr, fused=True)

    def _initial(self, seed: int, member: int) -> nn.Sequential:
        """Return a network with torch's initialisation, from its own seed."""
        (_, features), (_, targets) = (part.shape for part in (self.splits[0].x, self.splits[0].y))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream(seed, NUMBER[type(self.family)], member))
            norm, gamma = has_batchnorm(self.family), self.settings.gamma
            return regression_mlp(features, self.settings.hidden, targets, norm=norm, gamma=gamma)

    def fit(self) -> None:
        """Train for all epochs."""
        order = [split.generator(0) for split in self.splits]
        chance = [split.generator(NUMBER[type(self.family)]) for split in self.splits]
        (rows, features), hidden = self.splits[0].x.shape, self.settings.hidden
        steps, size = self.settings.cut(rows)
        ahead = max(1, AHEAD // steps)
        for start in range(0, self.settings.epochs, ahead):
            epochs = min(ahead, self.settings.epochs - start)
            batches = [s.minibatches(g, epochs, steps, size) for s, g in zip(self.splits, order, strict=True)]
            x, y = (torch.stack(part, 1) for part in zip(*batches, strict=True))
            drawn = [noise(self.family, epochs * steps, features, hidden, x, g) for g in chance]
            for step in zip(x, y, torch.stack(drawn, 1), strict=True):
                self._step(*(part.repeat_interleave(self.each, 0) for part in step))

    def _step(self, x: Tensor, y: Tensor, noise: Tensor) -> None:
        """Take one step on a minibatch x (B, D, N), y (B, T, N) for every network, each under its own draw."""
        self.optimizer.zero_grad()
        (mse_loss(self._forward(x, noise), y, reduction="sum") / y[0].numel()).backward()  # the networks' own means
        for part, decay in zip(self.parts, self.decay, strict=True):
            part.grad.addcmul_(part.detach(), decay)  # type: ignore[union-attr]
        self.optimizer.step()

    def _forward(self, x: Tensor, noise: Tensor) -> Tensor:
        weight1, bias1, weight2, bias2, *patches = self.parts
        drawn = (patches[0].gather(1, noise.unsqueeze(1)).squeeze(1) if patches else noise).split(self.sizes, 1)
        hidden = torch.baddbmm(bias1, weight1, self._layer_input(0, x, drawn)).relu()
        return torch.baddbmm(bias2, weight2, self._layer_input(1, hidden, drawn))

    def _layer_input(self, layer: int, x: Tensor, drawn: Sequence[Tensor]) -> Tensor:
        """Return the inputs of a linear layer after patched BatchNorm, or after dropout's mask."""
        if isinstance(self.family, Ensemble):
            return x
        if isinstance(self.family, Dropout):
            return x * drawn[layer].unsqueeze(2)
        (mean, var), (gamma, beta) = (of[2 * layer :][:2] for of in (self.moments, drawn))
        channels = x.reshape(1, -1, x.shape[2])
        return batch_norm(channels, mean, var, gamma.reshape(-1), beta.reshape(-1), training=True).view_as(x)

    @torch.no_grad()
    def result(self) -> list[list[Split]]:
        """Return the posteriors of each split, one for each of its weight decays."""
        if not all(part.isfinite().all() for part in self.parts):
            raise Diverged(f"The weights of {self.family} became infinite: try a smaller learning rate.")
        own = iter(range(0, len(self.nets), len(self.members)))
        return [
            [Split(self._posterior(next(own)), s.x_scale, s.y_scale, s.seed, decay) for decay in decays]
            for s, decays in zip(self.splits, self.decays, strict=True)
        ]

    def _posterior(self, first: int) -> BayesianModule:
        """Return a network's posterior: patches on the norms, dropout and ensembles on the linear layers."""
        net = self.nets[first].to(self.parts[0].device)
        for weight, part in zip(parameters(net, nn.Linear), self.parts, strict=False):
            weight.copy_(part[first].view_as(weight))
        running = [m for norm in net if isinstance(norm, nn.BatchNorm1d) for m in (norm.running_mean, norm.running_var)]
        for moment, all_of in zip(running, self.moments, strict=True):
            moment.copy_(all_of.view(len(self.nets), -1)[first])  # type: ignore[union-attr]
        model = bayesianize(net, {norm_layers if has_batchnorm(self.family) else nn.Linear: self.family})
        if has_batchnorm(self.family):
            model.factors[0].get_parameter("components").copy_(self.parts[4][first])
        elif isinstance(self.family, Ensemble):
            members = [part[first:][: len(self.members)].flatten(1) for part in self.parts]
            model.factors[0].get_parameter("components").copy_(torch.cat(members, 1))
        return model.eval()


def train(
    family: Family, splits: Sequence[Data], decays: Sequence[Sequence[float]], settings: Settings
) -> list[list[Split]]:
    """Train a family on each split with each of its weight decays; splits with equal batches are trained at once."""
    cuts = [settings.cut(len(split.x)) for split in splits]
    done: dict[int, list[Split]] = {}
    for cut in set(cuts):
        some = [i for i, own in enumerate(cuts) if own == cut]
        networks = Networks(family, [splits[i] for i in some], [decays[i] for i in some], settings)
        networks.fit()
        done |= zip(some, networks.result(), strict=True)
    return [done[i] for i in range(len(splits))]
