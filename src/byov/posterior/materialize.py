"""Two tensors that a compiled network must write to memory: a draw, and the flat gradient of its parts.

torch.compile (Inductor) fuses a tensor into whatever reads or writes it. That is wrong for these two:

- A draw θ = μ + σ·ε fused into BatchNorm's kernel over all activations is recomputed for each of them. This is a third
  of the time that a Gaussian adds to the training step of a ResNet-18 on an H200, and all of what EMP and ECMP add.
- The gradient of `torch.split` is a `cat`. Inductor lets each part's gradient be written into its slice of the result.
  Up to PyTorch 2.14 the kernel that computes the gradients of a LayerNorm's scale and bias on a GPU does not write
  there (its "mix-order reduction", pytorch#193061), and the slice keeps what was in memory before: a wrong gradient,
  without an error. An operator that is opaque to Inductor receives the parts as whole tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def materialize(draw: Tensor) -> Tensor:
    """Return `draw`; inside torch.compile it is written to memory once, because a strided view needs memory."""
    return _Materialize.apply(draw) if torch.compiler.is_compiling() else draw


class _Materialize(torch.autograd.Function):
    """Pass gradients through by hand: the backward of a strided view does not know that it is the identity."""

    @staticmethod
    def forward(ctx: Any, draw: Tensor) -> Tensor:
        return draw.as_strided(draw.shape, draw.stride())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def split(flat: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """Split the last dimension like `torch.split`; inside torch.compile its gradient is right on every PyTorch."""
    if torch.compiler.is_compiling():
        return _Split.apply(flat, sizes)
    return torch.split(flat, sizes, dim=-1)


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        return torch.split(flat, sizes, dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _cat(gradients), None


@torch.library.custom_op("byov::cat_gradients", mutates_args=())
def _cat(parts: list[Tensor]) -> Tensor:
    """Join along the last dimension like `torch.cat`, in an operator that is opaque to the compiler.

    It is one copy of many tensors: on a GPU, `cat` takes five times as long if the parts have unequal sizes.
    """
    flat = parts[0].new_empty(*parts[0].shape[:-1], sum(part.shape[-1] for part in parts))
    torch._foreach_copy_(flat.split([part.shape[-1] for part in parts], dim=-1), parts)
    return flat


@_cat.register_fake
def _(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, dim=-1)
