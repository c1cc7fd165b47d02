"""Normal noise for millions of weights on a CPU: in blocks with streams of their own, which all cores fill."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from math import ceil, pi

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from byov.posterior.rest import rest

BLOCK = 1 << 19
"""Elements that one stream of noise fills: over a millisecond, so that cores rarely wait for Python's lock."""

Floats = NDArray[np.float32]

_HALF, _RANGE, _ANGLE = np.float32(0.5), np.float32(2.0**31), np.float32(pi * 2.0**-31)


def seeds(count: int, generator: Generator | None) -> Tensor:
    """Of the streams that `count` numbers come from: all that is random in them."""
    return torch.randint(1 << 62, (ceil(count / BLOCK),), generator=generator)


@torch.no_grad()
def fill(out: Tensor, seeds: Tensor, then: Callable[[Floats, slice, Floats], None] | None = None) -> None:
    """Fill `out` (count,) with the noise of these streams: the same numbers on any number of cores.

    In float32 `then(block, where, spare)` goes on with each block, `where` it lies in `out`, while the cache holds it;
    `spare` is as long as the block, and free to write to.
    """
    cores = min(torch.get_num_threads(), len(seeds))
    starts = range(0, len(out), BLOCK)
    # Each core takes the next block when it is done with one, and one of the Nones at the end.
    jobs = [None] * cores + [(slice(i, i + BLOCK), seed) for i, seed in zip(starts, seeds.tolist(), strict=True)]

    def work() -> None:
        # Memory of a worker's own for all of its blocks: a fresh piece for each would have to be mapped and cleared.
        spare = np.empty(2 * ceil(min(BLOCK, len(out)) / 2), dtype=np.float32)
        with torch.no_grad(), np.errstate(all="ignore"):  # which mode is on is a thread's own affair
            for where, seed in iter(jobs.pop, None):
                if out.dtype != torch.float32:
                    out[where].normal_(generator=Generator().manual_seed(seed))
                    continue
                block = out[where].numpy()
                box_muller(block, seed, spare)
                if then is not None:
                    then(block, where, spare[: len(block)])

    if cores == 1:
        work()
    else:
        rest()
        with ThreadPoolExecutor(cores - 1) as pool:
            others = [pool.submit(work) for _ in range(cores - 1)]
            work()
            for other in others:
                other.result()


def box_muller(out: Floats, seed: int, spare: Floats) -> None:
    """ε₁ = r·cos φ and ε₂ = r·sin φ with r = √(−2 log u): two numbers from 64 random bits, 31 of which are u's.

    `Tensor.normal_` spends nearly all of its time in the Mersenne twister, number by number; this takes three quarters
    of it on one core. In numpy, because torch would open threads inside each of ours. The largest |ε| is 6.7.
    """
    half = ceil(len(out) / 2)
    words = np.random.SFC64(seed).random_raw(half).view(np.int32)
    r, phi = spare[:half], spare[half : 2 * half]
    np.copyto(r, words[:half], casting="unsafe")  # of either sign: it is squared below
    np.add(r, _HALF, out=r)  # never 0
    np.divide(_RANGE, r, out=r)  # 1/u, so that its logarithm has the sign that the root needs
    np.multiply(r, r, out=r)
    np.log(r, out=r)  # log u⁻² = −2 log |u|
    np.sqrt(r, out=r)
    np.copyto(phi, words[half:], casting="unsafe")
    np.multiply(phi, _ANGLE, out=phi)
    first, second = out[:half], out[half:]
    np.cos(phi, out=first)
    np.multiply(first, r, out=first)
    np.sin(phi[: len(second)], out=second)  # one less where their number is odd
    np.multiply(second, r[: len(second)], out=second)
