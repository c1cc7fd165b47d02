"""Many small regression networks trained as one: a batch dimension in front, and the gradient written out.

Network b = s·F + f is the f-th of split s; the F networks of a split see the same minibatches, so that their first
layers are one matrix product. Rows lie in the last dimension: an activation is (B, H, N). What a draw does to a layer's
input (BatchNorm's γ and β, dropout's mask) is folded into the layer's weights, which are smaller than a minibatch.

Everything is one flat parameter with one gradient buffer: Adam is one kernel, a step about thirty, without autograd.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from byov.data.tables import Scale
from byov.models.mlp import regression_mlp
from byov.posterior import ECMP, EMP, BayesianModule, Dropout, Ensemble, Family, bayesianize, norm_layers
from byov.posterior.random import categorical, stream, uniform

EPS, MOMENTUM = 1e-5, 0.1  # nn.BatchNorm1d's own

NUMBER = {EMP: 1, ECMP: 2, Dropout: 3, Ensemble: 4}
"""A family's own stream of random numbers, whichever others are trained beside it."""


class Shape(NamedTuple):
    """The size of a network, and where its γ start."""

    features: int
    hidden: int
    targets: int
    gamma: float = 0.2


def check(family: Family) -> None:
    """Refuse what this network does not have, lest a setting be taken and change nothing.

    The members of an explicit ensemble start anew, each from a seed of its own, whichever `start` it names: no network
    is given whose weights "copy", the default, could copy.
    """
    name = type(family).__name__
    if type(family) not in NUMBER:
        raise ValueError(f"The regression network takes EMP, ECMP, Dropout or Ensemble, not {name}.")
    if family.sigma > 0:  # type: ignore[attr-defined]
        raise ValueError(f"The regression network takes families with σ = 0, not {family}.")
    if not isinstance(family, EMP | ECMP | Ensemble):
        return
    starts = "all start at Settings.gamma and 0" if normed(family) else "start anew, each from a seed of its own"
    if family.learn_probs:
        raise ValueError(f"The regression network's mixing probabilities are fixed: {name} takes no learn_probs here.")
    if family.spread > 0:
        raise ValueError(f"The regression network's components {starts}: {name} takes no spread here.")
    if normed(family) and family.start != "copy":
        raise ValueError(f"The regression network's components {starts}: {name} takes no start='reset' here.")


def normed(family: Family) -> bool:
    """EMP and ECMP patch BatchNorm layers; dropout and the explicit ensemble have none (Appendix D.7)."""
    return isinstance(family, EMP | ECMP)


def members(family: Family) -> int:
    """Count the networks that are trained for a family."""
    return family.k if isinstance(family, Ensemble) else 1


def network(family: Family, shape: Shape) -> nn.Sequential:
    features, hidden, targets, gamma = shape
    return regression_mlp(features, hidden, targets, norm=normed(family), gamma=gamma)


def module(family: Family, net: nn.Sequential) -> BayesianModule:
    """Give a network its posterior: patches on the norms, dropout on the layers, ensembles on everything."""
    if normed(family):
        return bayesianize(net, {norm_layers: family})
    return bayesianize(net, {nn.Linear: family} if isinstance(family, Dropout) else family)


def initial(family: Family, seed: int, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    """Return `first`, `second` and `bias` of a family's networks, each as torch initialises it, from its own seed."""
    parts = []
    for member in range(members(family)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream(seed, NUMBER[type(family)], member))
            net = network(family, shape)
        layer, output = (m for m in net if isinstance(m, nn.Linear))
        weights = torch.cat([layer.weight, layer.bias[:, None]], 1), output.weight, output.bias[:, None]
        parts.append([weight.detach() for weight in weights])
    first, second, bias = (torch.stack(part) for part in zip(*parts, strict=True))
    return first, second, bias


def noise(family: Family, draws: int, features: int, hidden: int, like: Tensor, generator: Generator) -> Tensor:
    """Draw what is random in a network, once for each of `draws`.

    EMP and ECMP: Z of equations (4) and (5) for γ₁, β₁, γ₂, β₂, (draws, 2D + 2H), each layer's alike (EMP) or each by
    itself. Dropout: what each input and hidden unit is multiplied by, (draws, D + H), 0 or 1/(1 − p). Ensemble: ones.
    """
    if isinstance(family, ECMP):
        return categorical((draws, 2 * features + 2 * hidden), family.mixing, like, generator)
    if isinstance(family, EMP):
        z = categorical((draws, 2), family.mixing, like, generator)
        return torch.cat([z[:, :1].expand(-1, 2 * features), z[:, 1:].expand(-1, 2 * hidden)], 1)
    if isinstance(family, Dropout):
        return (uniform((draws, features + hidden), like, generator) >= family.p) / (1.0 - family.p)
    return like.new_ones(draws, features + hidden)


@dataclass(frozen=True)
class Data:
    """A split's standardised training rows, what standardised them, and the seed of its streams."""

    x: Tensor
    y: Tensor
    moments: tuple[Tensor, Tensor, Tensor, Tensor]
    seed: int

    @classmethod
    def of(cls, X: Tensor, y: Tensor, rows: Tensor, seed: int, device: torch.device) -> Data:
        scales = Scale.of(X[rows]), Scale.of(y[rows])
        x, y = (s.standardise(part[rows]).float().to(device) for s, part in zip(scales, (X, y), strict=True))
        x_mean, x_std, y_mean, y_std = (moment.to(device) for scale in scales for moment in scale)
        return cls(x, y, (x_mean, x_std, y_mean, y_std), seed)

    def generator(self, stream_of: int) -> Generator:
        """Return the split's own stream: 0 shuffles its rows, the others are its families' noise."""
        return Generator(self.x.device).manual_seed(stream(self.seed, 1 << 10, stream_of))


def minibatches(
    splits: Sequence[Data], order: Sequence[Generator], epochs: int, steps: int, size: int
) -> tuple[Tensor, Tensor]:
    """Shuffle every split's rows anew for each epoch: x (steps, S, D, N) and y (steps, S, 1, T, N)."""
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


@dataclass(frozen=True)
class Split:
    """One split's posterior. Leading dimension of the weights: an explicit ensemble's members, otherwise 1."""

    first: Tensor
    second: Tensor
    bias: Tensor
    patches: Tensor | None
    moments: tuple[Tensor, Tensor, Tensor, Tensor] | None
    """BatchNorm's running means and variances: of the inputs (D,), (D,), of the hidden units (H,), (H,)."""
    x_mean: Tensor
    x_std: Tensor
    y_mean: Tensor
    y_std: Tensor
    seed: int
    weight_decay: float

    @property
    def device(self) -> torch.device:
        return self.first.device


class Job(NamedTuple):
    """A family to train on every split, with a weight decay for each; equal families see the same noise."""

    family: Family
    decay: Sequence[float]


class Stack(ABC):
    """B = S·F networks  x → (norm) → Linear → ReLU → (norm) → Linear  of one shape, and their optimizer.

    `first` (B, H, D + 1) holds the hidden layer's weights and, last, its bias; `second` (B, T, H) and `bias` (B, T, 1)
    are the output's. x is (S, D + 1, N) with a last row of ones, y (S, 1, T, N). Every network has its own weight
    decay: L2, as torch's Adam has it.
    """

    def __init__(self, splits: Sequence[Data], jobs: Sequence[Job], hidden: int, gamma: float, lr: float) -> None:
        self.splits, self.jobs = splits, jobs
        self.features, self.hidden = splits[0].x.shape[1], hidden
        shape = Shape(self.features, hidden, splits[0].y.shape[1], gamma)
        weights = [initial(job.family, split.seed, shape) for split in splits for job in jobs]
        parts = [torch.cat(part).to(splits[0].x) for part in zip(*weights, strict=True)]
        parts += self._patches(parts[0], gamma)
        sizes = [part.numel() for part in parts]
        self.flat = nn.Parameter(torch.cat([part.reshape(-1) for part in parts]))
        self.grad = self.flat.grad = torch.zeros_like(self.flat)
        self.parts = [v.view(p.shape) for v, p in zip(self.flat.detach().split(sizes), parts, strict=True)]
        self.grads = [v.view(p.shape) for v, p in zip(self.grad.split(sizes), parts, strict=True)]
        self.first, self.second, self.bias = self.parts[:3]
        self.folded = torch.empty_like(self.first)
        decay = parts[0].new_tensor(
            [job.decay[s] for s in range(len(splits)) for job in jobs for _ in range(members(job.family))]
        )
        self.decay = torch.cat([decay.view(-1, *[1] * (p.ndim - 1)).expand_as(p).reshape(-1) for p in parts])
        self.optimizer = torch.optim.Adam([self.flat], lr=lr, fused=True, capturable=self.flat.is_cuda)
        self.generators = [{job.family: s.generator(NUMBER[type(job.family)]) for job in jobs} for s in splits]

    def _patches(self, first: Tensor, gamma: float) -> list[Tensor]:
        """Return what is trained beside the weights."""
        return []

    @abstractmethod
    def chunk(self, x: Tensor) -> list[Tensor]:
        """Return the inputs (steps, S, D, N) as `gradient` takes them, and the noise, of many steps."""

    @abstractmethod
    def gradient(self, x: Tensor, y: Tensor, noise: Sequence[Tensor]) -> None:
        """Write the gradient of every network's mean squared error under one draw of its weights."""

    @abstractmethod
    def posterior(self, split: int, here: slice) -> tuple[Tensor | None, tuple[Tensor, Tensor, Tensor, Tensor] | None]:
        """Return `patches` and `moments` of the networks `here`, which are of that split."""

    @torch.no_grad()
    def steps(self, y: Tensor, tensors: Sequence[Tensor]) -> None:
        """Train on a chunk of steps: the targets, and what `chunk` gave."""
        xs, *noise = (tensor.unbind() for tensor in tensors)
        for x, target, *draw in zip(xs, y.unbind(), *noise, strict=True):
            self.gradient(x, target, draw)
            self.grad.addcmul_(self.flat, self.decay)
            self.optimizer.step()

    def result(self) -> list[list[Split]]:
        """Return every job's networks, split by split."""
        done: list[list[Split]] = [[] for _ in self.jobs]
        start = 0
        for s, split in enumerate(self.splits):
            for job, found in zip(self.jobs, done, strict=True):
                here = slice(start, start := start + members(job.family))
                first, second, bias = (part[here].clone() for part in (self.first, self.second, self.bias))
                patches, kept = self.posterior(s, here)
                found.append(Split(first, second, bias, patches, kept, *split.moments, split.seed, job.decay[s]))
        return done

    def _noise(self, x: Tensor) -> Tensor:
        """Draw every network's noise for every step, (steps, B, 1, …)."""
        drawn = []
        for generators in self.generators:
            own = {f: noise(f, len(x), self.features, self.hidden, x, g) for f, g in generators.items()}
            drawn += [own[job.family] for job in self.jobs for _ in range(members(job.family))]
        return torch.stack(drawn, 1).unsqueeze(2)

    def _hidden(self, x: Tensor) -> Tensor:
        rows = self.folded.view(len(self.splits), -1, self.folded.shape[2])
        return torch.bmm(rows, x).relu_().view(*self.folded.shape[:2], x.shape[2])

    def _error(self, weight: Tensor, hidden: Tensor, y: Tensor) -> Tensor:
        """∂MSE/∂output, (B, T, N)."""
        output = torch.baddbmm(self.bias, weight, hidden)
        output.view(len(self.splits), -1, *output.shape[1:]).sub_(y)
        return output.mul_(2.0 / (output.shape[1] * output.shape[2]))

    def _folded_gradient(self, hidden: Tensor, gradient: Tensor, x: Tensor) -> Tensor:
        """∂MSE/∂folded (B, H, D + 1) from ∂MSE/∂hidden."""
        before = torch.ops.aten.threshold_backward(gradient, hidden, 0)
        return torch.bmm(before.view(len(self.splits), -1, x.shape[2]), x.transpose(1, 2)).view_as(self.first)


def with_ones(x: Tensor, dim: int) -> Tensor:
    """Append a slice of ones, which a bias is multiplied by."""
    return torch.cat([x, torch.ones_like(x.narrow(dim, 0, 1))], dim)


class Plain(Stack):
    """Networks without BatchNorm; noise is the factor of every input and hidden unit, (B, 1, D + 1) and (B, 1, H)."""

    def chunk(self, x: Tensor) -> list[Tensor]:
        inputs, hidden = self._noise(x).split([self.features, self.hidden], 3)
        return [with_ones(x, 2), with_ones(inputs, 3), hidden.contiguous()]

    def gradient(self, x: Tensor, y: Tensor, noise: Sequence[Tensor]) -> None:
        inputs, units = noise
        torch.mul(self.first, inputs, out=self.folded)
        hidden, second = self._hidden(x), self.second * units
        error = self._error(second, hidden, y)
        g_first, g_second, g_bias = self.grads
        torch.mul(torch.bmm(error, hidden.transpose(1, 2)), units, out=g_second)
        torch.sum(error, 2, keepdim=True, out=g_bias)
        gradient = torch.bmm(second.transpose(1, 2), error)
        torch.mul(self._folded_gradient(hidden, gradient, x), inputs, out=g_first)

    def posterior(self, split: int, here: slice) -> tuple[None, None]:
        return None, None


class Normed(Stack):
    """Networks with two patched BatchNorm layers: `patches` (B, K, 2D + 2H) are K times γ₁, β₁, γ₂, β₂.

    noise is the component that each element of a patch takes, (B, 1, 2D + 2H). x is normalised by its minibatch's
    moments already: they depend on no weight.
    """

    def __init__(self, splits: Sequence[Data], jobs: Sequence[Job], hidden: int, gamma: float, lr: float) -> None:
        super().__init__(splits, jobs, hidden, gamma, lr)
        features = self.features
        self.sizes = [features, features, hidden, hidden]
        self.weight, self.hidden_bias = self.first.split([features, 1], 2)
        self.folded_weight, self.folded_bias = self.folded.split([features, 1], 2)
        self.grad_weight, self.grad_hidden_bias = self.grads[0].split([features, 1], 2)
        self.x_mean = self.first.new_zeros(len(splits), features)
        self.x_var = torch.ones_like(self.x_mean)
        self.mean = self.first.new_zeros(self.first.shape[:2].numel())
        self.var = torch.ones_like(self.mean)

    def _patches(self, first: Tensor, gamma: float) -> list[Tensor]:
        start = first.new_zeros(2 * self.features + 2 * self.hidden)
        start[: self.features] = start[2 * self.features : -self.hidden] = gamma
        return [start.expand(len(first), self.jobs[0].family.k, -1)]  # type: ignore[attr-defined]

    def chunk(self, x: Tensor) -> list[Tensor]:
        """Normalise the inputs by their minibatches; bring BatchNorm's running moments past all steps at once."""
        mean = x.mean(3, keepdim=True)
        x = x - mean
        var = x.square().mean(3, keepdim=True)  # torch.var_mean is slow on a CPU
        keep, steps = 1.0 - MOMENTUM, len(x)
        weight = MOMENTUM * keep ** torch.arange(steps - 1, -1, -1, device=x.device)
        unbiased = var[..., 0] * (x.shape[3] / (x.shape[3] - 1))
        self.x_mean = keep**steps * self.x_mean + torch.einsum("n,nsd->sd", weight, mean[..., 0])
        self.x_var = keep**steps * self.x_var + torch.einsum("n,nsd->sd", weight, unbiased)
        return [with_ones(x.mul_((var + EPS).rsqrt()), 2), self._noise(x)]

    def gradient(self, x: Tensor, y: Tensor, noise: Sequence[Tensor]) -> None:
        (z,) = noise
        gamma1, beta1, gamma2, beta2 = self.parts[3].gather(1, z).split(self.sizes, 2)
        torch.mul(self.weight, gamma1, out=self.folded_weight)
        torch.add(self.hidden_bias, torch.bmm(self.weight, beta1.transpose(1, 2)), out=self.folded_bias)
        hidden = self._hidden(x)
        channels, scale = hidden.view(1, -1, hidden.shape[2]), gamma2.reshape(-1)
        normed, mean, inverse = torch.native_batch_norm(
            channels, scale, beta2.reshape(-1), self.mean, self.var, True, MOMENTUM, EPS
        )
        error = self._error(self.second, normed.view_as(hidden), y)
        torch.bmm(error, normed.view_as(hidden).transpose(1, 2), out=self.grads[1])
        torch.sum(error, 2, keepdim=True, out=self.grads[2])
        gradient, g_gamma2, g_beta2 = torch.ops.aten.native_batch_norm_backward(
            torch.bmm(self.second.transpose(1, 2), error).view_as(channels),
            *(channels, scale, self.mean, self.var, mean, inverse, True, EPS, [True, True, True]),
        )
        folded = self._folded_gradient(hidden, gradient.view_as(hidden), x)
        g_weight, g_bias = folded.split([self.sizes[0], 1], 2)
        torch.mul(g_weight, gamma1, out=self.grad_weight).addcmul_(g_bias, beta1)
        self.grad_hidden_bias.copy_(g_bias)
        g_gamma1 = torch.mul(g_weight, self.weight).sum(1, keepdim=True)
        g_beta1 = torch.bmm(g_bias.transpose(1, 2), self.weight)
        patch = torch.cat([g_gamma1, g_beta1, g_gamma2.view_as(gamma2), g_beta2.view_as(beta2)], 2)
        self.grads[3].zero_().scatter_(1, z, patch)

    def posterior(self, split: int, here: slice) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
        mean, var = (moment.view(-1, self.hidden)[here][0].clone() for moment in (self.mean, self.var))
        moments = self.x_mean[split].clone(), self.x_var[split].clone(), mean, var
        return self.parts[3][here].clone(), moments
