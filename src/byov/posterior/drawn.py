"""A Gaussian's draw in a compiled step on a GPU: one pass over μ and ρ, noise and all, and nothing kept but θ.

torch.compile fuses θ = μ + exp(½ρ)·ε by itself. But its normal numbers cost a whole round of Philox each, of which it
uses a half, and for the gradient by ρ it writes ε, as large as θ, to memory. Here a round gives four numbers, and the
gradient needs none of them: σε is θ − μ, so ∂θ/∂ρ = ½(θ − μ).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Generator, Tensor, nn

HAS_TRITON = find_spec("triton") is not None  # not on macOS, nor with PyTorch's wheels for CPUs


def pays(mean: Tensor, generator: Generator | None) -> bool:
    """Whether draws around this μ are made by the kernel: compiled, on a GPU, from the global generator.

    A generator's noise is `normal`'s, the same compiled or not. A compiled `torch.vmap` over a model in train mode does
    not work with the kernel, for which it has no rule, and cannot be told in a way that PyTorch 2.11 traces.
    """
    if not (HAS_TRITON and torch.compiler.is_compiling()) or generator is not None:
        return False
    return type(mean) is nn.Parameter and mean.is_cuda and mean.dtype == torch.float32


def new_seed(mean: Tensor) -> Tensor:
    """The seed (1,) of one draw: all that is random in it."""
    return torch.randint(1 << 62, (1,), device=mean.device)


def launch(mean: Tensor, log_var: Tensor, seed: Tensor) -> Tensor:
    """θ by the kernel."""
    from byov.posterior.draw_kernel import BLOCK, WARPS, draw_kernel  # here: Triton takes half a second to import

    out = torch.empty_like(mean)
    grid = (-(-mean.numel() // (4 * BLOCK)),)
    draw_kernel[grid](mean, log_var, seed, out, mean.numel(), BLOCK, num_warps=WARPS)
    return out


class _Draw(torch.autograd.Function):
    @staticmethod
    def forward(mean: Tensor, log_var: Tensor, seed: Tensor) -> Tensor:
        return launch(mean, log_var, seed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        mean, theta = ctx.saved_tensors
        return gradient, 0.5 * gradient * (theta - mean), None


def drawn(mean: Tensor, log_var: Tensor, seed: Tensor) -> Tensor:
    """θ = μ + exp(½ρ)·ε, with ε ~ N(0, 1) by the seed."""
    return _Draw.apply(mean, log_var, seed)
