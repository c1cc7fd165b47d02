"""Noise: the same numbers on any number of cores, streams that are independent, and the right distribution."""

import pytest
import torch

from byov.posterior.random import BLOCK, categorical, normal, stream


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def large(seed: int) -> torch.Tensor:
    return normal((3 * BLOCK + 7,), torch.empty(0), torch.Generator().manual_seed(seed))


def test_large_noise_is_the_same_on_any_number_of_cores(threads):
    threads(1)
    alone = large(0)
    threads(2)
    assert torch.equal(alone, large(0))


def test_large_noise_follows_the_global_seed_and_moves_it():
    torch.manual_seed(3)
    first, second = normal((3 * BLOCK,), torch.empty(0), None), normal((3 * BLOCK,), torch.empty(0), None)
    torch.manual_seed(3)
    assert torch.equal(first, normal((3 * BLOCK,), torch.empty(0), None))
    assert not torch.equal(first, second)


def test_large_noise_is_standard_normal_in_every_block_and_independent_between_them():
    """Mean, variance and fourth moment within five standard errors; correlations between blocks too."""
    blocks = torch.stack(large(1)[: 3 * BLOCK].double().split(BLOCK))
    error = BLOCK**-0.5
    assert (blocks.mean(1).abs() < 5 * error).all()
    assert ((blocks.square().mean(1) - 1).abs() < 5 * error * 2**0.5).all()
    assert ((blocks.pow(4).mean(1) - 3).abs() < 5 * error * 96**0.5).all()
    correlation = blocks @ blocks.T / BLOCK - torch.eye(3)
    assert (correlation.fill_diagonal_(0).abs() < 5 * error).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_noise_has_the_dtype_of_the_weights(dtype):
    for count in (5, 3 * BLOCK):
        noise = normal((count,), torch.empty(0, dtype=dtype), torch.Generator().manual_seed(0))
        assert noise.dtype == dtype
        assert noise.shape == (count,)


def test_streams_differ_in_the_32_bits_that_cpu_generators_keep():
    seeds = {stream(seed, rank, step) & 0xFFFFFFFF for seed in range(4) for rank in range(8) for step in range(64)}
    assert len(seeds) == 4 * 8 * 64


def test_a_component_of_probability_half_is_drawn_half_of_the_time():
    """Within five standard errors of a binomial with n = 100,000."""
    z = categorical((100_000,), (0.5, 0.3, 0.2), torch.empty(0), torch.Generator().manual_seed(0))
    shares = torch.bincount(z, minlength=3) / len(z)
    assert ((shares - torch.tensor([0.5, 0.3, 0.2])).abs() < 5 * 0.5 / len(z) ** 0.5).all()
