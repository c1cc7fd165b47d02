"""Many small networks trained as one: a batch dimension in front of everything, and the gradient written out.

Network b = s·F + f is the f-th of split s; the F networks of a split see the same minibatches, so that their first
layers are one matrix product. Rows lie in the last dimension: an activation is (B, H, N). What a draw does to a layer's
input (BatchNorm's γ and β, dropout's mask) is folded into the layer's weights, which are smaller than a minibatch.

Everything is one flat parameter with one gradient buffer: Adam is one kernel, a step about thirty, without autograd.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import zip_longest

import torch
from torch import Tensor, nn

EPS, MOMENTUM = 1e-5, 0.1  # nn.BatchNorm1d's own


class Stack(ABC):
    """B = S·F networks  x → (norm) → Linear → ReLU → (norm) → Linear  and their optimizer.

    `first` (B, H, D + 1) holds the hidden layer's weights and, last, its bias; `second` (B, T, H) and `bias` (B, T, 1)
    are the output's. x is (S, D + 1, N) with a last row of ones, y (S, 1, T, N). `decay` (B,) is every network's own
    weight decay: L2, as torch's Adam has it.
    """

    def __init__(self, parts: Sequence[Tensor], splits: int, lr: float, decay: Tensor) -> None:
        sizes = [part.numel() for part in parts]
        self.flat = nn.Parameter(torch.cat([part.reshape(-1) for part in parts]))
        self.grad = self.flat.grad = torch.zeros_like(self.flat)
        self.parts = [v.view(p.shape) for v, p in zip(self.flat.detach().split(sizes), parts, strict=True)]
        self.grads = [v.view(p.shape) for v, p in zip(self.grad.split(sizes), parts, strict=True)]
        self.first, self.second, self.bias = self.parts[:3]
        self.splits = splits
        self.folded = torch.empty_like(self.first)
        self.decay = torch.cat([decay.view(-1, *[1] * (p.ndim - 1)).expand_as(p).reshape(-1) for p in parts])
        self.optimizer = torch.optim.Adam([self.flat], lr=lr, fused=True, capturable=self.flat.is_cuda)

    @abstractmethod
    def gradient(self, x: Tensor, y: Tensor, noise: Sequence[Tensor]) -> None:
        """Write the gradient of every network's mean squared error under one draw of its weights."""

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, noise: Sequence[Tensor]) -> None:
        self.gradient(x, y, noise)
        self.grad.addcmul_(self.flat, self.decay)
        self.optimizer.step()

    def _hidden(self, x: Tensor) -> Tensor:
        rows = self.folded.view(self.splits, -1, self.folded.shape[2])
        return torch.bmm(rows, x).relu_().view(*self.folded.shape[:2], x.shape[2])

    def _error(self, weight: Tensor, hidden: Tensor, y: Tensor) -> Tensor:
        """∂MSE/∂output, (B, T, N)."""
        output = torch.baddbmm(self.bias, weight, hidden)
        output.view(self.splits, -1, *output.shape[1:]).sub_(y)
        return output.mul_(2.0 / (output.shape[1] * output.shape[2]))

    def _folded_gradient(self, hidden: Tensor, gradient: Tensor, x: Tensor) -> Tensor:
        """∂MSE/∂folded (B, H, D + 1) from ∂MSE/∂hidden."""
        before = torch.ops.aten.threshold_backward(gradient, hidden, 0)
        return torch.bmm(before.view(self.splits, -1, x.shape[2]), x.transpose(1, 2)).view_as(self.first)

    def state(self) -> list[Tensor]:
        """All that a step changes; what the optimizer makes in its first step is last."""
        return [self.flat.detach(), *(slot for slots in self.optimizer.state.values() for slot in slots.values())]

    @torch.no_grad()
    def restore(self, state: Sequence[Tensor]) -> None:
        """Back to `state`, in place, since a graph knows only places; what was not there yet becomes 0 again."""
        for tensor, kept in zip_longest(self.state(), state):
            tensor.zero_() if kept is None else tensor.copy_(kept)


class Plain(Stack):
    """Networks without BatchNorm; noise is the factor of every input and hidden unit, (B, 1, D + 1) and (B, 1, H)."""

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


class Normed(Stack):
    """Networks with two patched BatchNorm layers: `patches` (B, K, 2D + 2H) are K times γ₁, β₁, γ₂, β₂.

    noise is the component that each element of a patch takes, (B, 1, 2D + 2H). x is normalised by its minibatch's
    moments already: they depend on no weight.
    """

    def __init__(self, parts: Sequence[Tensor], splits: int, lr: float, decay: Tensor) -> None:
        super().__init__(parts, splits, lr, decay)
        self.patches = self.parts[3]
        units, features = self.first.shape[1], self.first.shape[2] - 1
        self.sizes = [features, features, units, units]
        self.weight, self.hidden_bias = self.first.split([features, 1], 2)
        self.folded_weight, self.folded_bias = self.folded.split([features, 1], 2)
        self.grad_weight, self.grad_hidden_bias = self.grads[0].split([features, 1], 2)
        channels = self.first.shape[:2].numel()
        self.mean, self.var = self.flat.new_zeros(channels).detach(), self.flat.new_ones(channels).detach()

    def gradient(self, x: Tensor, y: Tensor, noise: Sequence[Tensor]) -> None:
        (z,) = noise
        gamma1, beta1, gamma2, beta2 = self.patches.gather(1, z).split(self.sizes, 2)
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

    def state(self) -> list[Tensor]:
        return [self.mean, self.var, *super().state()]
