"""What a prediction says of a regression, against closed forms; and how far rounding goes."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from small_networks import seeded
from torch import Tensor, nn
from torch.testing import assert_close

import byov
from byov.prediction.result import Moments

from .networks import by_hand


def line(log_var: float = -1.0) -> tuple[byov.BayesianModule, Tensor]:
    """f(x) = w·x with w ~ N(2, σ²): the predictive is N(2x, σ²x² + 1/τ)."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 2.0)
    return byov.bayesianize(net, byov.Gaussian(log_var)), torch.tensor([[0.0], [0.5], [-3.0]])


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_a_regression_converges_to_its_closed_form(strategy: Any) -> None:
    model, x = line()
    samples, precision, variance = 4000, 2.5, float(torch.tensor(-1.0).exp())
    found = byov.predict(model, x, samples, strategy, generator=seeded(2), task="regression", precision=precision)
    spread = variance * x**2
    error = 5 * spread.sqrt() / sqrt(samples) + 1e-6  # five standard errors
    assert bool(((found.mean - 2 * x).abs() <= error).all())
    # The relative standard error of a Gaussian's variance is √(2/S).
    assert_close(found.std**2 - 1 / precision, spread, rtol=5 * sqrt(2 / samples), atol=1e-6)
    expected = stats.norm(scale=np.sqrt(spread.numpy() + 1 / precision)).entropy()
    assert_close(found.entropy.numpy(), expected.astype(np.float32), rtol=0, atol=0.05)
    aleatoric = float(stats.norm(scale=precision**-0.5).entropy())
    assert_close(found.expected_entropy, torch.full_like(x, aleatoric))
    assert_close(found.mutual_information, found.entropy - found.expected_entropy)
    assert float(found.mutual_information[0]) == pytest.approx(0.0, abs=1e-6)  # at x = 0 the weight does not matter


def test_a_regression_without_a_precision_has_no_entropy() -> None:
    model, x = line()
    found = byov.predict(model, x, 50, generator=seeded(2), task="regression", keep=True)
    by_loop = by_hand(model, x, 50, seed=2, softmax=False)
    assert_close(found.draws, by_loop)
    assert_close(found.mean, by_loop.mean(0))
    assert_close(found.std, by_loop.std(0, correction=0))
    assert_close(found.epistemic, found.std**2)
    assert found.aleatoric is found.entropy is found.expected_entropy is found.mutual_information is None
    with_noise = byov.predict(model, x, 50, generator=seeded(2), task="regression", precision=4.0)
    assert_close(with_noise.std, (found.std**2 + 0.25).sqrt())
    assert_close(with_noise.epistemic, found.epistemic)
    assert_close(with_noise.aleatoric, torch.full((3, 1), 0.25))
    assert_close(with_noise.mean, found.mean)


def test_a_regression_with_one_number_per_input() -> None:
    class Flat(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).squeeze(1)

    model, x = byov.bayesianize(Flat(2, 1), byov.Gaussian(-2.0)), torch.randn(5, 2)
    for tolerance in (None, 0.05):
        found = byov.predict(model, x, 40, tolerance=tolerance, task="regression")
        assert found.mean.shape == found.std.shape == (5,)


def test_moments_survive_where_the_difference_of_squares_does_not() -> None:
    """A spread of 1e-3 around 1000: E[f²] − E[f]² in float32 would be all rounding."""
    values = 1000 + 1e-3 * torch.randn(400, 3, 2, dtype=torch.float64)
    moments = Moments("regression")
    for chunk in values.float().split([1, 7, 92, 300]):
        moments.update(chunk)
    spread = values.float().double().std(0, correction=0)
    assert_close(moments.result(None)["std"].double(), spread, rtol=0.05, atol=0)


def test_information_is_not_negative_by_rounding() -> None:
    model = byov.bayesianize(nn.Linear(6, 5), byov.Gaussian(-40.0))
    found = byov.predict(model, torch.randn(400, 6), 50)
    assert float((found.entropy - found.expected_entropy).min()) < 0  # type: ignore[operator]
    assert float(found.mutual_information.min()) == 0.0  # type: ignore[union-attr]


def test_a_prediction_prints_in_one_line() -> None:
    model, x = line()
    assert (
        repr(byov.predict(model, x, 3, task="regression"))
        == "Prediction(regression: mean (3, 1), draws: 3, strategy: head)"
    )
    assert "on average" in repr(byov.predict(model, x, 30, task="regression", tolerance=0.1))
