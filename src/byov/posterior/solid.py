"""A draw that a compiled network reads from memory, instead of computing it again wherever it is read.

A compiler fuses θ = μ + σ·ε into the kernel that uses it. For a BatchNorm's scale that is the kernel over all
activations: it then draws the same 64 numbers anew for every one of 33 million elements. On an H200 this was a third of
what a Gaussian adds to the step of a ResNet-18, and all of what EMP and ECMP add.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def solid(draw: Tensor) -> Tensor:
    """`draw` itself; inside torch.compile it is written to memory once, because a view by strides needs memory."""
    return _Solid.apply(draw) if torch.compiler.is_compiling() else draw


class _Solid(torch.autograd.Function):
    """Its gradient by hand: that of a view by strides would not know that it is the identity."""

    @staticmethod
    def forward(ctx: Any, draw: Tensor) -> Tensor:
        return draw.as_strided(draw.shape, draw.stride())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient
