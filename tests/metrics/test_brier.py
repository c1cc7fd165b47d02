"""The Brier score against scikit-learn, its parts against their definitions, and the sum to the last digits."""

import numpy as np
import pytest
import torch
from hypothesis import given
from sklearn.metrics import brier_score_loss
from torch import Tensor

from byov.metrics.functional import brier_decomposition, brier_score

from .inputs import problems, random_problem


def by_definition(probs: Tensor, labels: Tensor) -> tuple[float, float, float, float]:
    """The four formulas as they stand, on centred values: no sufficient statistics."""
    p, y = probs.double().numpy(), np.eye(probs.shape[1])[labels.numpy()]
    predicted, marginal = p.argmax(1), y.mean(0)
    resolution = reliability = covariance = 0.0
    for k in np.unique(predicted):
        inside = predicted == k
        weight, forecast, label = inside.mean(), p[inside], y[inside]
        observed = label.mean(0)
        resolution += weight * ((observed - marginal) ** 2).sum()
        reliability += weight * ((forecast - observed) ** 2).sum(1).mean()
        covariance += weight * ((forecast - forecast.mean(0)) * (label - observed)).sum(1).mean()
    return 1 - (marginal**2).sum(), resolution, reliability, -2 * covariance


@pytest.mark.parametrize("classes", [2, 5])
def test_score_matches_scikit_learn(classes: int) -> None:
    probs, labels = random_problem(0, 500, classes)
    one_hot = torch.eye(classes)[labels]
    expected = sum(brier_score_loss(one_hot[:, c].numpy(), probs[:, c].numpy()) for c in range(classes))
    assert brier_score(probs, labels).item() == pytest.approx(expected, abs=1e-12)


def test_the_scale_is_zero_to_two() -> None:
    probs = torch.eye(3)
    assert brier_score(probs, torch.tensor([0, 1, 2])) == 0
    assert brier_score(probs, torch.tensor([1, 2, 0])) == 2


@given(problems())
def test_parts_match_their_definitions_and_sum_to_the_score(problem: tuple[Tensor, Tensor]) -> None:
    probs, labels = problem
    parts = brier_decomposition(probs, labels)
    assert parts._fields == ("uncertainty", "resolution", "reliability", "within_bin")
    for part, expected in zip(parts, by_definition(probs, labels), strict=True):
        assert part.dtype == torch.float64
        assert part.item() == pytest.approx(expected, abs=1e-12)
    assert parts.resolution >= 0
    assert parts.reliability >= 0
    score = parts.uncertainty - parts.resolution + parts.reliability + parts.within_bin
    assert score.item() == pytest.approx(brier_score(probs, labels).item(), abs=1e-12)
    assert parts.score == score


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("skew", "classes"), [(0.0, 10), (1.0, 10), (0.05, 100)])
def test_parts_sum_on_balanced_and_imbalanced_labels(dtype: torch.dtype, skew: float, classes: int) -> None:
    probs, labels = random_problem(0, 20_000, classes, skew=skew)
    parts = brier_decomposition(probs.to(dtype), labels)
    assert parts.score.item() == pytest.approx(brier_score(probs.to(dtype), labels).item(), abs=1e-12)
    if skew:  # the marginals are far from uniform, where a transposed broadcast would show
        assert parts.uncertainty < 0.99 * (1 - 1 / classes)
        assert parts.resolution.item() == pytest.approx(by_definition(probs, labels)[1], abs=1e-6)


def test_a_calibrated_models_covariance_is_twice_its_reliability() -> None:
    """If y ~ p, then in every bin E ‖p − ō‖² = tr Var p = tr Cov(p, y), so within_bin → −2 · reliability, which stays
    positive at any n. Both are means of n = 200,000 terms in −2..4 with a standard deviation below one: 4/√n = 0.009.
    """
    generator = torch.Generator().manual_seed(0)
    probs = (2 * torch.randn(200_000, 4, generator=generator)).softmax(1)
    labels = probs.multinomial(1, generator=generator).squeeze(1)
    parts = brier_decomposition(probs, labels)
    assert parts.reliability > 0.05
    assert parts.within_bin.item() == pytest.approx(-2 * parts.reliability.item(), abs=0.009)
    without = parts.uncertainty - parts.resolution + parts.reliability
    assert abs((without - parts.score).item()) > 0.1


def test_one_forecast_per_bin_leaves_no_within_bin_term() -> None:
    """Forecasts that are constant inside their bins: the classical three-part decomposition is exact, and a forecast
    equal to its bin's frequencies has no reliability term."""
    probs = torch.tensor([[0.75, 0.25]] * 4 + [[0.25, 0.75]] * 4, dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1, 0])
    parts = brier_decomposition(probs, labels)
    assert [part.item() for part in parts] == pytest.approx([0.5, 0.125, 0.0, 0.0], abs=1e-12)
