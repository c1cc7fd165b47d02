"""Noise on the right device: drawn on the generator's device, then moved to that of the weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor


def _place(like: Tensor, generator: Generator | None) -> torch.device:
    return like.device if generator is None else generator.device


def normal(shape: Sequence[int], like: Tensor, generator: Generator | None) -> Tensor:
    """Draw standard normal noise in the dtype of `like`."""
    return torch.randn(shape, generator=generator, device=_place(like, generator), dtype=like.dtype).to(like.device)


def uniform(shape: Sequence[int], like: Tensor, generator: Generator | None) -> Tensor:
    """Draw uniform noise on [0, 1) in float32, whatever the weights' dtype: bfloat16 has only 256 steps there."""
    return torch.rand(shape, generator=generator, device=_place(like, generator)).to(like.device)


def categorical(shape: Sequence[int], probs: Sequence[float], like: Tensor, generator: Generator | None) -> Tensor:
    """Draw component numbers 0 … K−1 with the given probabilities."""
    place = _place(like, generator)
    if len(set(probs)) == 1:
        return torch.randint(len(probs), shape, generator=generator, device=place).to(like.device)
    edges = torch.tensor(probs[:-1], dtype=torch.float64).cumsum(0).float().to(like.device)
    return torch.bucketize(uniform(shape, like, generator), edges, right=True)


def stream(seed: int, *path: int) -> int:
    """Return a seed for the stream `path`, by SplitMix64, because CPU generators keep only 32 bits of a seed."""
    state = seed & 0xFFFFFFFFFFFFFFFF
    for step in path:
        state = (state + 0x9E3779B97F4A7C15 * (step + 1)) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state & 0x7FFFFFFFFFFFFFFF
