"""Gather the global batch from all processes, for losses that compare the images of a batch with each other."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from byov.posterior.module import several_processes


class _Gather(torch.autograd.Function):
    """All-gather with gradients: every process uses every part, so a part's gradient is the sum over processes."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        whole = part.new_empty(dist.get_world_size() * part.shape[0], *part.shape[1:])
        dist.all_gather_into_tensor(whole, part.contiguous())
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


def gather(part: Tensor) -> Tensor:
    """Return the rows of all processes in rank order, equally many of each; a single process gets its rows unchanged.

    DDP averages gradients over processes, so the mean of the processes' losses is minimised. Whether each process
    computes the loss of the whole batch, or of its own rows against all, the gradient is that of a single process with
    the whole batch.
    """
    return _Gather.apply(part) if several_processes() else part


def rank() -> int:
    """Return the index of this process's part in a gathered batch."""
    return dist.get_rank() if several_processes() else 0
