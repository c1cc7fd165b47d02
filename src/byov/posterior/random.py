"""Noise on the right device: drawn where the generator lives, used where the weights live."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Generator, Tensor

from byov.posterior import blocks


def _place(like: Tensor, generator: Generator | None) -> torch.device:
    return like.device if generator is None else generator.device


def normal(shape: Sequence[int], like: Tensor, generator: Generator | None) -> Tensor:
    """Standard normal noise in the dtype of `like`.

    torch draws on one core of a CPU. Noise for millions of weights is therefore cut into blocks with streams of their
    own, whose seeds the generator draws, and filled on all cores: the same numbers on any number of them.
    """
    place, count = _place(like, generator), prod(shape)
    if place.type != "cpu" or not blockwise(count):
        return torch.randn(shape, generator=generator, device=place, dtype=like.dtype).to(like.device)
    eps = torch.empty(shape, dtype=like.dtype)
    blocks.fill(eps.view(-1), blocks.seeds(count, generator))
    return eps.to(like.device)


def blockwise(count: int) -> bool:
    """Whether so many numbers on a CPU are drawn in blocks."""
    return count > 2 * blocks.BLOCK and not torch.compiler.is_compiling()


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
