"""θ = μ + exp(½ρ)·ε as a Triton kernel, noise and all; see `drawn`, which alone imports it."""

import triton
import triton.language as tl

BLOCK, WARPS = 1024, 4
"""Rounds of Philox in a program, and its warps: a thread has eight rounds, and loads 16 bytes at a time."""


@triton.jit
def _write(
    eps: tl.tensor, mean: tl.tensor, log_var: tl.tensor, out: tl.tensor, place: tl.tensor, count: tl.tensor
) -> None:
    inside = place < count
    mu = tl.load(mean + place, mask=inside, other=0.0)
    std = tl.exp(0.5 * tl.load(log_var + place, mask=inside, other=0.0))
    tl.store(out + place, mu + std * eps, mask=inside)


@triton.jit
def draw_kernel(
    mean: tl.tensor, log_var: tl.tensor, seed: tl.tensor, out: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr
) -> None:
    """θ of 4·BLOCK weights; the four numbers of a round lie a block apart, so that memory is read in rows."""
    program, lane = tl.program_id(0), tl.arange(0, BLOCK)
    a, b, c, d = tl.randn4x(tl.load(seed), program * BLOCK + lane)
    place = program.to(tl.int64) * (4 * BLOCK) + lane
    _write(a, mean, log_var, out, place, count)
    _write(b, mean, log_var, out, place + BLOCK, count)
    _write(c, mean, log_var, out, place + 2 * BLOCK, count)
    _write(d, mean, log_var, out, place + 3 * BLOCK, count)
