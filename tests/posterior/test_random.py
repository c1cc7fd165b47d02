"""Noise: the generator's own numbers, streams that differ, probabilities that hold."""

import torch
from small_networks import seeded

from byov.posterior.random import categorical, normal, stream


def test_noise_is_torchs_own_from_the_generator_or_else_the_global_seed() -> None:
    expected = torch.randn(5, 2, generator=seeded(3), dtype=torch.float64)
    like = torch.empty(0, dtype=torch.float64)
    assert torch.equal(normal((5, 2), like, seeded(3)), expected)
    torch.manual_seed(3)
    assert torch.equal(normal((5, 2), like, None), expected)
    assert not torch.equal(normal((5, 2), like, None), expected)


def test_streams_differ_in_the_32_bits_that_cpu_generators_keep() -> None:
    seeds = {stream(seed, rank, step) & 0xFFFFFFFF for seed in range(4) for rank in range(8) for step in range(64)}
    assert len(seeds) == 4 * 8 * 64


def test_a_component_of_probability_half_is_drawn_half_of_the_time() -> None:
    """Within five standard errors of a binomial with n = 100,000."""
    z = categorical((100_000,), (0.5, 0.3, 0.2), torch.empty(0), seeded(0))
    shares = torch.bincount(z, minlength=3) / len(z)
    assert ((shares - torch.tensor([0.5, 0.3, 0.2])).abs() < 5 * 0.5 / len(z) ** 0.5).all()
