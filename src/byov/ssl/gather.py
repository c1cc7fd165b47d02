"""The batch of all processes: for losses that compare the images of a batch with each other."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from byov.posterior.module import several_processes


class _Gather(torch.autograd.Function):
    """Each process reads the parts of all, so the gradient of a part is the sum of what all make of it."""

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
    """Return the rows of all processes, in the order of their ranks, as many of each; alone, the rows as they are.

    DDP averages gradients over processes. So the mean of the processes' losses is what is minimised, and the loss of
    the whole batch on each, or of each one's own rows against all, has the gradient of one process with the batch.
    """
    return _Gather.apply(part) if several_processes() else part


def rank() -> int:
    """Return which part of a gathered batch is this process's own."""
    return dist.get_rank() if several_processes() else 0
