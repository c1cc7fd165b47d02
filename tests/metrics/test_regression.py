"""Regression metrics against scikit-learn, torch.distributions and a closed form."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import root_mean_squared_error
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from byov.metrics.functional import log_predictive_density, rmse


@pytest.mark.parametrize("shape", [(50,), (50, 3)])
def test_rmse_matches_scikit_learn(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    prediction, target = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    expected = root_mean_squared_error(target.reshape(-1).numpy(), prediction.reshape(-1).numpy())
    assert rmse(prediction, target).item() == pytest.approx(expected, abs=1e-12)


@given(st.integers(1, 150), st.integers(1, 8), st.sampled_from([0, 1, 3]), st.floats(1e-3, 1e3), st.integers(0, 999))
def test_density_is_that_of_a_mixture(samples: int, points: int, outputs: int, precision: float, seed: int) -> None:
    """An equal mixture of Gaussians by torch.distributions, across the chunks the draws are read in."""
    generator = torch.Generator().manual_seed(seed)
    shape = (points, outputs) if outputs else (points,)
    draws = torch.randn(samples, *shape, generator=generator, dtype=torch.float64)
    target = torch.randn(shape, generator=generator, dtype=torch.float64)
    component = Normal(draws.movedim(0, 1), torch.tensor(precision, dtype=torch.float64) ** -0.5)
    weights = Categorical(torch.ones(points, samples, dtype=torch.float64))
    mixture = MixtureSameFamily(weights, Independent(component, 1) if outputs else component)
    expected = mixture.log_prob(target).mean().item()
    assert log_predictive_density(draws, target, precision).item() == pytest.approx(expected, rel=1e-10)
    assert log_predictive_density(iter(draws), target, precision).item() == pytest.approx(expected, rel=1e-10)


def test_a_precision_per_output() -> None:
    generator = torch.Generator().manual_seed(0)
    draws, target = torch.randn(1, 6, 2, generator=generator), torch.randn(6, 2, generator=generator)
    separate = sum(log_predictive_density(draws[..., d], target[..., d], tau) for d, tau in enumerate((0.5, 7.0)))
    joint = log_predictive_density(draws, target, torch.tensor([0.5, 7.0]))
    assert joint.item() == pytest.approx(float(separate), abs=1e-12)


def test_a_far_target_does_not_underflow() -> None:
    value = log_predictive_density(torch.zeros(10, 1), torch.tensor([1e4]), precision=0.1)
    assert value.item() == pytest.approx(0.5 * math.log(0.1 / (2 * math.pi)) - 0.05 * 1e8, rel=1e-12)


def test_the_scale_of_the_data_enters_as_its_logarithm() -> None:
    generator = torch.Generator().manual_seed(0)
    draws, target, scale = torch.randn(20, 9, generator=generator), torch.randn(9, generator=generator), 3.0
    at_scale = log_predictive_density(draws * scale, target * scale, 2.0 / scale**2)
    standardised = log_predictive_density(draws, target, 2.0)
    assert standardised.item() - at_scale.item() == pytest.approx(math.log(scale), abs=1e-6)


def test_gaussian_draws_converge_to_the_convolution() -> None:
    """f ~ N(0, 1) and noise 1/τ = ½ give y ~ N(0, 3/2). The mean of S = 100,000 densities has a relative standard
    error below 2/√S here, so 4 · 2/√S = 0.025 in the logarithm."""
    draws = torch.randn(100_000, 3, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([-1.0, 0.0, 1.5])
    expected = Normal(0.0, 1.5**0.5).log_prob(target).mean().item()
    assert log_predictive_density(draws, target, precision=2.0).item() == pytest.approx(expected, abs=0.025)
