"""Noise: the same numbers on any number of cores, streams that are independent, and the right distribution."""

import threading

import numpy as np
import pytest
import scipy.stats
import torch

from byov.posterior import blocks
from byov.posterior.blocks import BLOCK, box_muller
from byov.posterior.random import categorical, normal, stream


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
    for cores in (2, 3, 8):
        threads(cores)
        assert torch.equal(alone, large(0))


def test_an_error_on_any_core_is_raised(threads):
    """Also where it is not the one that asked for the noise."""
    threads(2)
    other = threading.Event()

    def fail(block, where, spare):
        if threading.current_thread() is not threading.main_thread():
            other.set()
            raise ArithmeticError("not here")
        assert other.wait(60)

    out = torch.empty(4 * BLOCK)
    with pytest.raises(ArithmeticError, match="not here"):
        blocks.fill(out, blocks.seeds(len(out), None), fail)


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


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_large_noise_is_normal_by_its_distribution_moments_and_tails(seed):
    """4 M numbers: Kolmogorov-Smirnov at one in a million; moments to the sixth and tails within five errors."""
    eps = normal((1 << 22,), torch.empty(0), torch.Generator().manual_seed(seed)).double().numpy()
    assert np.isfinite(eps).all()
    assert scipy.stats.kstest(eps, "norm").pvalue > 1e-6
    exact = (1, 0, 1, 0, 3, 0, 15, 0, 105, 0, 945, 0, 10395)
    for power in range(1, 7):
        error = ((exact[2 * power] - exact[power] ** 2) / len(eps)) ** 0.5
        assert abs((eps**power).mean() - exact[power]) < 5 * error
    for limit in (2.0, 3.0, 4.0, 5.0):
        for outside in ((eps > limit).sum(), (eps < -limit).sum()):
            expected = len(eps) * scipy.stats.norm.sf(limit)
            assert scipy.stats.poisson.cdf(outside, expected) > 1e-6
            assert scipy.stats.poisson.sf(outside - 1, expected) > 1e-6


def test_the_two_numbers_of_a_pair_know_nothing_of_each_other():
    """Neither they, nor their sizes, nor their signs: correlations within five errors, also with their neighbours."""
    eps = large(2)[:BLOCK].double()
    first, second = eps.split(BLOCK // 2)
    pairs = [(first, second), (first[1:], first[:-1]), (second[1:], second[:-1]), (first[1:], second[:-1])]
    for a, b in pairs:
        for look in (lambda x: x, torch.square, torch.sign, torch.abs):
            correlation = torch.corrcoef(torch.stack([look(a), look(b)]))[0, 1]
            assert abs(correlation) < 5 * len(a) ** -0.5
    angle = torch.atan2(second, first).numpy() / (2 * torch.pi) + 0.5
    assert scipy.stats.kstest(angle, "uniform").pvalue > 1e-6
    assert scipy.stats.kstest((first**2 + second**2).numpy(), "chi2", (2,)).pvalue > 1e-6


@pytest.mark.parametrize("words", [0, 2**64 - 1, 2**31, 2**63, 2**63 - 1, 2**31 - 1])
def test_no_random_bits_make_noise_that_is_not_finite(words, monkeypatch):
    """All bits alike, and the ends of the range of either half."""

    class Constant:
        def __init__(self, seed):
            pass

        def random_raw(self, size):
            return np.full(size, words, dtype=np.uint64)

    monkeypatch.setattr(blocks.np.random, "SFC64", Constant)
    out = np.empty(7, dtype=np.float32)
    box_muller(out, 0, np.empty(8, dtype=np.float32))
    assert np.isfinite(out).all()
    assert np.abs(out).max() < 6.7


def test_large_noise_is_box_muller_of_numpys_stream():
    """By hand in float64, within float32's rounding."""
    count = 2 * BLOCK + 5
    eps = normal((count,), torch.empty(0), torch.Generator().manual_seed(4))
    seeds = torch.randint(1 << 62, (3,), generator=torch.Generator().manual_seed(4)).tolist()
    for block, seed in zip(eps.split(BLOCK), seeds, strict=True):
        half = (len(block) + 1) // 2
        words = np.random.SFC64(seed).random_raw(half).view(np.int32).astype(np.float64)
        r, phi = np.sqrt(-2 * np.log(np.abs(words[:half] + 0.5) / 2**31)), np.pi * words[half:] / 2**31
        expected = np.concatenate([r * np.cos(phi), r * np.sin(phi)])[: len(block)]
        # Near u = 1, where r is small, float32 knows u only to 2⁻²⁵.
        assert np.abs(block.numpy() - expected).max() < 1e-3
        assert np.abs(block.numpy() - expected)[np.abs(expected) > 0.1].max() < 1e-5


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
