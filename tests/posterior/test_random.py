"""Noise: the generator's own numbers in the weights' dtype, streams that differ, probabilities that hold."""

import pytest
import torch

from byov.posterior.random import categorical, normal, stream


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_noise_is_torchs_own_in_the_dtype_of_the_weights(dtype):
    noise = normal((5, 2), torch.empty(0, dtype=dtype), torch.Generator().manual_seed(3))
    assert torch.equal(noise, torch.randn(5, 2, generator=torch.Generator().manual_seed(3), dtype=dtype))


def test_noise_without_a_generator_follows_the_global_seed_and_moves_it():
    torch.manual_seed(3)
    first, second = normal((7,), torch.empty(0), None), normal((7,), torch.empty(0), None)
    torch.manual_seed(3)
    assert torch.equal(first, normal((7,), torch.empty(0), None))
    assert not torch.equal(first, second)


def test_streams_differ_in_the_32_bits_that_cpu_generators_keep():
    seeds = {stream(seed, rank, step) & 0xFFFFFFFF for seed in range(4) for rank in range(8) for step in range(64)}
    assert len(seeds) == 4 * 8 * 64


def test_a_component_of_probability_half_is_drawn_half_of_the_time():
    """Within five standard errors of a binomial with n = 100,000."""
    z = categorical((100_000,), (0.5, 0.3, 0.2), torch.empty(0), torch.Generator().manual_seed(0))
    shares = torch.bincount(z, minlength=3) / len(z)
    assert ((shares - torch.tensor([0.5, 0.3, 0.2])).abs() < 5 * 0.5 / len(z) ** 0.5).all()
