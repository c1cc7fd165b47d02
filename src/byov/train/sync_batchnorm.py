"""BatchNorm over the batches of all processes, on the CPU too, where torch's SyncBatchNorm does not run."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm


class GlooBatchNorm(_BatchNorm):
    """The statistics of the global batch by two differentiable sums; every process must hold as many examples."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"BatchNorm needs at least two dimensions, not {input.dim()}.")

    def forward(self, input: Tensor) -> Tensor:
        if not (self.training and dist.is_initialized() and dist.get_world_size() > 1):
            return super().forward(input)
        dims = [0, *range(2, input.dim())]
        count = input.numel() // input.shape[1] * dist.get_world_size()
        sums = all_reduce(torch.stack([input.sum(dims), input.square().sum(dims)]))
        mean = sums[0] / count
        var = (sums[1] / count - mean.square()).clamp_min(0.0)
        if self.running_mean is not None and self.running_var is not None:
            rate = 0.1 if self.momentum is None else self.momentum
            with torch.no_grad():
                self.running_mean.lerp_(mean, rate)
                self.running_var.lerp_(var * (count / (count - 1)), rate)
                self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        shape = (1, -1, *(1 for _ in dims[1:]))
        out = (input - mean.view(shape)) * (var + self.eps).rsqrt().view(shape)
        return out * self.weight.view(shape) + self.bias.view(shape) if self.affine else out


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
