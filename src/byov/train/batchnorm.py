"""Prepare a network's BatchNorm layers for training: synchronise them over processes, or put dropout before them.

Dropout before every BatchNorm is the patching paper's baseline (D.3). The input of a BatchNorm need not come from a
layer with weights: it may be the sum of two branches, or another norm. So each BatchNorm gets a *gate*, one number per
channel that multiplies its input. It is 1, is not learned, and is covered by `byov.Dropout`: in a draw it is 0 with
probability p, otherwise 1/(1 − p). This is `nn.Dropout2d` before the norm with one mask for the whole batch, since a
draw is of the network's weights; the paper's layer has a mask for each image and pixel. The running statistics see the
zeros, as in the paper.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Sum(torch.autograd.Function):
    """Sum over processes. Every process uses the total, so the gradient of each part is the sum of all gradients."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradient)


class GlooBatchNorm(_BatchNorm):
    """BatchNorm with statistics over all processes on the CPU, where torch's SyncBatchNorm does not run.

    It uses two differentiable sums; all processes must have equally many examples. The second sum is of squared
    deviations from the mean, in float32 or better: E[x²] − E[x]² would suffer from cancellation.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"BatchNorm needs at least two dimensions, not {input.dim()}.")

    def forward(self, input: Tensor) -> Tensor:
        if not (self.training and dist.is_initialized() and dist.get_world_size() > 1):
            return super().forward(input)
        dims = [0, *range(2, input.dim())]
        count = input.numel() // input.shape[1] * dist.get_world_size()
        shape = (1, -1, *(1 for _ in dims[1:]))
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        mean = _Sum.apply(x.sum(dims)) / count
        x = x - mean.view(shape)
        var = _Sum.apply(x.square().sum(dims)) / count
        if self.running_mean is not None and self.running_var is not None:
            with torch.no_grad():
                self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
                rate = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum  # type: ignore[arg-type]
                self.running_mean.lerp_(mean, rate)
                self.running_var.lerp_(var * (count / (count - 1)), rate)
        out = x * (var + self.eps).rsqrt().view(shape)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out.to(input.dtype)


def synchronise(net: nn.Module, device: torch.device) -> nn.Module:
    """Replace the network's BatchNorm layers with synchronised ones; call this before `bayesianize`."""
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(net)
    if isinstance(net, _BatchNorm) and not isinstance(net, GlooBatchNorm):
        new = GlooBatchNorm(net.num_features, net.eps, net.momentum, net.affine, net.track_running_stats)
        new._parameters, new._buffers, new.training = net._parameters, net._buffers, net.training
        return new
    for name, child in net.named_children():
        setattr(net, name, synchronise(child, device))
    return net


def add_gates(net: nn.Module) -> nn.Module:
    """Put a gate before every BatchNorm of `net`, in place."""
    norms = [m for m in net.modules() if isinstance(m, _BatchNorm)]
    if not norms:
        raise ValueError(f"{type(net).__name__} has no BatchNorm to put dropout before.")
    for norm in norms:
        like = next(norm.parameters(), None)
        device = None if like is None else like.device
        norm.register_parameter("gate", nn.Parameter(torch.ones(norm.num_features, device=device), requires_grad=False))
        norm.register_forward_pre_hook(_through_gate)
    return net


def gates(name: str, module: nn.Module, parameter: Tensor) -> bool:
    """Select the gates: a rule for `bayesianize`."""
    return name.rpartition(".")[2] == "gate"


def _through_gate(norm: Any, inputs: tuple[Tensor, ...]) -> Tensor:
    x = inputs[0]
    return x * norm.gate.to(x.dtype).view(1, -1, *(1 for _ in x.shape[2:]))
