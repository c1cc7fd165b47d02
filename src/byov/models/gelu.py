"""A bias and a GELU as one operation on a GPU, and the MLP of a ViT that uses it.

In the compiled step of a ViT-S/16 (batch 256, bfloat16, an H200), torch.compile's own GELU took 0.112 ms per block, and
its gradient 0.152 ms and another 0.064 ms to compute it again, only to sum it for the bias; to move that memory takes
0.077 and 0.115 ms. What is in the way is erf. Here Φ is an exponential and a polynomial, and one pass over memory gives
both gradients: 0.083 and 0.135 ms (by themselves, sum included).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from timm.layers import Mlp
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import gelu, linear

HAS_TRITON = find_spec("triton") is not None  # not on macOS, nor with PyTorch's wheels for CPUs
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Tile(NamedTuple):
    """What a program works on at a time, and how many programs share the work."""

    rows: int
    columns: int
    """A power of two. A thread reads 16 bytes, eight numbers, so that 256 columns keep a warp on one row."""
    warps: int
    programs: int


# The fastest of about ten each on an H200, which has 132 multiprocessors. The backward kernel has no more programs than
# these hold at a time: each leaves a row of sums, and few rows are summed in one go.
FORWARD = Tile(rows=8, columns=256, warps=8, programs=32 * 132)
BACKWARD = Tile(rows=8, columns=256, warps=4, programs=5 * 132)

if HAS_TRITON:
    import triton
    import triton.language as tl

    @triton.jit
    def _tail(x: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
        """Φ(−|x|) / e and e = exp(−x²/2), by Abramowitz and Stegun's 7.1.26, to 7.5e-8 in Φ.

        The same e is in φ(x), which makes the gradient cheap. A division would be scaled against overflow, eight
        instructions; the reciprocal root of a square is one, and its square one more.
        """
        below = 1.0 + 0.23164189 * tl.abs(x)  # p/√2 = 0.3275911/√2
        t = tl.rsqrt(below * below)
        series = 0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)  # a₃/2, a₄/2, a₅/2
        series = t * (0.127414796 + t * (-0.142248368 + t * series))  # a₁/2, a₂/2
        return series, tl.exp2(-0.72134752 * (x * x))  # log₂(e)/2

    @triton.jit
    def forward_kernel(
        h: tl.tensor,
        bias: tl.tensor,
        out: tl.tensor,
        rows: tl.tensor,
        width: tl.tensor,
        ROWS: tl.constexpr,
        COLUMNS: tl.constexpr,
    ) -> None:
        """out = GELU(h + bias); a program walks down one block of columns, over every so many-th block of rows."""
        row = tl.arange(0, ROWS)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < width
        shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        places = row[:, None] * width + column[None, :]  # within a block: 32 bits are enough
        first = tl.program_id(1).to(tl.int64) * ROWS
        while first < rows:
            mask = (row < rows - first)[:, None] & inside[None, :]
            x = tl.load(h + first * width + places, mask=mask, other=0.0).to(tl.float32) + shift[None, :]
            series, e = _tail(x)
            y = tl.maximum(x, 0.0) - tl.abs(x) * (series * e)  # x·Φ(x) on either side of 0
            tl.store(out + first * width + places, y, mask=mask)
            first += tl.num_programs(1) * ROWS

    @triton.jit
    def backward_kernel(
        gradient: tl.tensor,
        h: tl.tensor,
        bias: tl.tensor,
        out: tl.tensor,
        sums: tl.tensor,
        rows: tl.tensor,
        width: tl.tensor,
        ROWS: tl.constexpr,
        COLUMNS: tl.constexpr,
    ) -> None:
        """out = gradient·GELU′(h + bias), and the sums of what this program wrote, by column, in its row of `sums`.

        GELU′(x) = Φ(x) + x·φ(x), and GELU′(−x) = 1 − GELU′(x).
        """
        row = tl.arange(0, ROWS)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < width
        shift = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        places = row[:, None] * width + column[None, :]
        total = tl.zeros((ROWS, COLUMNS), tl.float32)  # a sum per place: threads meet once, at the end
        first = tl.program_id(1).to(tl.int64) * ROWS
        while first < rows:
            mask = (row < rows - first)[:, None] & inside[None, :]
            x = tl.load(h + first * width + places, mask=mask, other=0.0).to(tl.float32) + shift[None, :]
            incoming = tl.load(gradient + first * width + places, mask=mask, other=0.0).to(tl.float32)
            series, e = _tail(x)
            left = e * (series - 0.3989422804 * tl.abs(x))  # GELU′(−|x|)
            y = incoming * tl.where(x < 0.0, left, 1.0 - left)
            tl.store(out + first * width + places, y, mask=mask)
            total += y
            first += tl.num_programs(1) * ROWS
        tl.store(sums + tl.program_id(1) * width + column, tl.sum(total, 0), mask=inside)


def _grid(rows: int, width: int, tile: Tile) -> tuple[int, int]:
    """Blocks of columns, and the programs that share each of them."""
    blocks = -(-width // tile.columns)
    return blocks, min(-(-rows // tile.rows), -(-tile.programs // blocks))


# The kernels are launched as any Triton kernel is: torch.compile traces such calls, here within an autograd.Function,
# and puts them among its own kernels. A `torch.library.triton_op` would do that too, but its block sizes would not be
# in the compile cache's key, and PyTorch 2.11's cannot run in Triton's interpreter.


def launch_forward(h: Tensor, bias: Tensor, tile: Tile = FORWARD) -> Tensor:
    """GELU(h + bias) by the kernel; h (..., C), bias (C,)."""
    h, width = h.contiguous(), h.shape[-1]
    rows, out = h.numel() // width, torch.empty_like(h)
    grid = _grid(rows, width, tile)
    forward_kernel[grid](h, bias.contiguous(), out, rows, width, tile.rows, tile.columns, num_warps=tile.warps)
    return out


def launch_backward(gradient: Tensor, h: Tensor, bias: Tensor, tile: Tile = BACKWARD) -> tuple[Tensor, Tensor]:
    """The gradients by h and by the bias; the latter is summed in float32, in the same order every time."""
    gradient, h, width = gradient.contiguous(), h.contiguous(), h.shape[-1]
    rows, out = h.numel() // width, torch.empty_like(h)
    grid = _grid(rows, width, tile)
    sums = torch.empty(grid[1], width, dtype=torch.float32, device=h.device)
    backward_kernel[grid](
        gradient, h, bias.contiguous(), out, sums, rows, width, tile.rows, tile.columns, num_warps=tile.warps
    )
    return out, sums.sum(0).to(bias.dtype)


class _BiasGELU(torch.autograd.Function):
    """Keeps h and the bias, as PyTorch's GELU keeps their sum."""

    @staticmethod
    def forward(h: Tensor, bias: Tensor) -> Tensor:
        return launch_forward(h, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return launch_backward(gradient, *ctx.saved_tensors)


def plain_bias_gelu(h: Tensor, bias: Tensor) -> Tensor:
    """The same in PyTorch's own operations, for wherever the kernels cannot run."""
    return gelu(h.to(torch.promote_types(h.dtype, torch.float32)) + bias).to(h.dtype)


def bias_gelu(h: Tensor, bias: Tensor) -> Tensor:
    """GELU(h + bias) over the last dimension, x·Φ(x), computed in float32 at least and given in h's type.

    On a GPU Φ is approximated to 1e-7, far below what bfloat16 can tell; a NaN stays one, and an infinity becomes one.
    """
    if not HAS_TRITON or not h.is_cuda or h.dtype not in DTYPES:
        return plain_bias_gelu(h, bias)
    return _BiasGELU.apply(h, bias)


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def pays(mlp: Mlp, x: Tensor) -> bool:
    """Whether `bias_gelu` gains anything here: in a compiled training step on a GPU, in 16 bits, of the usual MLP.

    Everywhere else the MLP is timm's to the bit.
    """
    if not (torch.compiler.is_compiling() and torch.is_grad_enabled() and x.is_cuda):
        return False
    fc1, act = mlp.fc1, mlp.act
    if type(fc1) is not nn.Linear or fc1.bias is None or type(act) is not nn.GELU or act.approximate != "none":
        return False
    if any(getattr(layer, hooks) for layer in (fc1, act) for hooks in _HOOKS):
        return False
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else fc1.weight.dtype
    return dtype in (torch.bfloat16, torch.float16)


class MLP(Mlp):
    """timm's, whose first bias and GELU are one operation where that pays."""

    def forward(self, x: Tensor) -> Tensor:
        if not pays(self, x):
            return super().forward(x)
        fc1: Any = self.fc1
        x = bias_gelu(linear(x, fc1.weight), fc1.bias)
        return self.drop2(self.fc2(self.norm(self.drop1(x))))
