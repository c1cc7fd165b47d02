"""Noise on the right device: drawn where the generator lives, used where the weights live."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import pi, prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

BLOCK = 1 << 19
"""Elements that one stream of noise fills on a CPU: over a millisecond, so that cores rarely wait for Python's lock."""


def _place(like: Tensor, generator: Generator | None) -> torch.device:
    return like.device if generator is None else generator.device


def normal(shape: Sequence[int], like: Tensor, generator: Generator | None) -> Tensor:
    """Standard normal noise in the dtype of `like`.

    torch draws on one core of a CPU. Noise for millions of weights is therefore cut into blocks with streams of their
    own, whose seeds the generator draws, and filled on all cores: the same numbers on any number of them.
    """
    place, count = _place(like, generator), prod(shape)
    if place.type != "cpu" or count <= 2 * BLOCK or torch.compiler.is_compiling():
        return torch.randn(shape, generator=generator, device=place, dtype=like.dtype).to(like.device)
    eps = torch.empty(shape, dtype=like.dtype)
    blocks = eps.view(-1).split(BLOCK)
    seeds = torch.randint(1 << 62, (len(blocks),), generator=generator).tolist()
    if torch.get_num_threads() == 1:
        for block, seed in zip(blocks, seeds, strict=True):
            _fill(block, seed)
    else:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(_fill, blocks, seeds))
    return eps.to(like.device)


def _fill(block: Tensor, seed: int) -> None:
    with torch.no_grad():  # which mode is on is a thread's own affair
        if block.dtype == torch.float32:
            _box_muller(block.numpy(), seed)
        else:
            block.normal_(generator=Generator().manual_seed(seed))


def _box_muller(out: NDArray[np.float32], seed: int) -> None:
    """ε₁ = r·cos φ and ε₂ = r·sin φ with r = √(−2 log u): two numbers from 64 random bits, 31 of which are u's.

    `Tensor.normal_` spends nearly all of its time in the Mersenne twister, number by number; this takes three quarters
    of it on one core. In numpy, because torch would open threads inside each of ours. The largest |ε| is 6.7.
    """
    half = (len(out) + 1) // 2
    words = np.random.SFC64(seed).random_raw(half).view(np.int32)
    u = words[:half].astype(np.float32)  # of either sign: it is squared below
    u += 0.5  # never 0, whose logarithm is infinite
    u *= 2.0**-31
    u *= u
    r = np.log(u, out=u)  # log u² = 2 log |u|
    np.negative(r, out=r)
    np.sqrt(r, out=r)
    phi = words[half:].astype(np.float32)
    phi *= pi * 2.0**-31
    first, second = out[:half], out[half:]
    np.cos(phi, out=first)
    first *= r
    np.sin(phi[: len(second)], out=second)  # one less where their number is odd
    second *= r[: len(second)]


def uniform(shape: Sequence[int], like: Tensor, generator: Generator | None) -> Tensor:
    """Uniform noise on [0, 1) in float32, whatever the weights' dtype: bfloat16 has only 256 steps there."""
    return torch.rand(shape, generator=generator, device=_place(like, generator)).to(like.device)


def categorical(shape: Sequence[int], probs: Sequence[float], like: Tensor, generator: Generator | None) -> Tensor:
    """Component numbers 0 … K−1 with the given probabilities."""
    place = _place(like, generator)
    if len(set(probs)) == 1:
        return torch.randint(len(probs), shape, generator=generator, device=place).to(like.device)
    edges = torch.tensor(probs[:-1], dtype=torch.float64).cumsum(0).float().to(like.device)
    return torch.bucketize(uniform(shape, like, generator), edges, right=True)


def stream(seed: int, *path: int) -> int:
    """A seed for the stream named by `path`: SplitMix64, because CPU generators keep only 32 bits of a seed."""
    state = seed & 0xFFFFFFFFFFFFFFFF
    for step in path:
        state = (state + 0x9E3779B97F4A7C15 * (step + 1)) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state & 0x7FFFFFFFFFFFFFFF
