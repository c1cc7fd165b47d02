"""BatchNorm over the batches of all processes, on the CPU too, where torch's SyncBatchNorm does not run."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class _Sum(torch.autograd.Function):
    """The sum over processes. Each reads the sum of all, so the gradient of a part is the sum of all gradients."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Sum.forward(ctx, gradient)


class GlooBatchNorm(_BatchNorm):
    """The statistics of the global batch by two differentiable sums; every process must hold as many examples.

    The second sum is of squares about the mean that the first gave, in float32 at least: E[x²] − E[x]² would cancel.
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
    """The network with its BatchNorm layers replaced by synchronised ones; call it before `bayesianize`."""
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(net)
    if isinstance(net, _BatchNorm) and not isinstance(net, GlooBatchNorm):
        new = GlooBatchNorm(net.num_features, net.eps, net.momentum, net.affine, net.track_running_stats)
        new._parameters, new._buffers, new.training = net._parameters, net._buffers, net.training
        return new
    for name, child in net.named_children():
        setattr(net, name, synchronise(child, device))
    return net
