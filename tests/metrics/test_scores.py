"""Scores against scikit-learn, torch.distributions and brute force; the Brier parts against their definitions.

Corruption errors are held to the formulas of the patching paper, D.4, written out.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, root_mean_squared_error
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from byov.metrics import functional as F

from .inputs import problems, random_problem


@given(problems(), st.data())
def test_accuracy_is_a_stable_sort(problem: tuple[Tensor, Tensor], data: st.DataObject) -> None:
    probs, labels = problem
    top_k = data.draw(st.integers(1, probs.shape[1]))
    hits = [label in sorted(range(len(row)), key=lambda c: (-row[c], c))[:top_k]
            for row, label in zip(probs.tolist(), labels.tolist(), strict=True)]  # fmt: skip
    assert F.accuracy(probs, labels, top_k).item() == pytest.approx(sum(hits) / len(hits), abs=1e-12)
    assert F.accuracy(probs, labels, probs.shape[1]) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nll_matches_scikit_learn(dtype: torch.dtype) -> None:
    probs, labels = random_problem(1, 500, 5)
    value = F.nll(probs.to(dtype), labels)
    assert value.dtype == torch.float64
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    assert value.item() == pytest.approx(log_loss(labels.numpy(), probs.numpy(), labels=range(5)), rel=tolerance)


@given(problems())
def test_log_input_is_the_same_number(problem: tuple[Tensor, Tensor]) -> None:
    probs, labels = problem
    own = probs[torch.arange(len(labels)), labels]
    value = F.nll(probs.log(), labels, log_input=True)
    if own.min() > 0:
        assert value.item() == pytest.approx(F.nll(probs, labels).item(), abs=1e-12)
    else:  # the logarithm of zero is not clamped
        assert value == math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_underflowed_probability_costs_the_smallest_normal_number(dtype: torch.dtype) -> None:
    value = F.nll(torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=dtype), torch.tensor([1, 0]))
    assert value.item() == pytest.approx(-math.log(torch.finfo(dtype).tiny) / 2)


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


@given(problems())
def test_parts_match_their_definitions_and_sum_to_the_score(problem: tuple[Tensor, Tensor]) -> None:
    probs, labels = problem
    parts = F.brier_decomposition(probs, labels)
    assert parts._fields == ("uncertainty", "resolution", "reliability", "within_bin")
    for part, expected in zip(parts, by_definition(probs, labels), strict=True):
        assert part.dtype == torch.float64
        assert part.item() == pytest.approx(expected, abs=1e-12)
    assert parts.resolution >= 0
    assert parts.reliability >= 0
    score = parts.uncertainty - parts.resolution + parts.reliability + parts.within_bin
    assert score.item() == pytest.approx(F.brier_score(probs, labels).item(), abs=1e-12)
    assert parts.score == score


def test_parts_of_many_float32_forecasts_sum_to_the_score() -> None:
    probs, labels = random_problem(0, 20_000, 100, skew=0.05)
    parts = F.brier_decomposition(probs.float(), labels)
    assert parts.score.item() == pytest.approx(F.brier_score(probs.float(), labels).item(), abs=1e-12)
    assert [part.item() for part in parts] == pytest.approx(by_definition(probs.float(), labels), abs=1e-9)


def test_rounding_does_not_make_the_reliability_negative() -> None:
    probs = torch.tensor([[5 / 6, 1 - 5 / 6]], dtype=torch.float64).expand(6, 2)
    assert F.brier_decomposition(probs, torch.tensor([0, 0, 0, 0, 0, 1])).reliability == 0


@pytest.mark.parametrize("shape", [(50,), (50, 3)])
def test_rmse_matches_scikit_learn(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    prediction, target = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    expected = root_mean_squared_error(target.reshape(-1).numpy(), prediction.reshape(-1).numpy())
    assert F.rmse(prediction, target).item() == pytest.approx(expected, abs=1e-12)


@given(st.integers(1, 150), st.integers(1, 8), st.sampled_from([0, 1, 3]), st.floats(1e-3, 1e3), st.integers(0, 999))
def test_density_is_that_of_a_mixture(samples: int, points: int, outputs: int, precision: float, seed: int) -> None:
    """An equal mixture of Gaussians by torch.distributions, across the chunks the draws are read in."""
    generator = torch.Generator().manual_seed(seed)
    shape = (points, outputs) if outputs else (points,)
    draws = torch.randn(samples, *shape, generator=generator, dtype=torch.float64)
    target = torch.randn(shape, generator=generator, dtype=torch.float64)
    tau = torch.tensor(precision, dtype=torch.float64)
    tau = tau * torch.arange(1, outputs + 1) if outputs and seed % 2 else tau  # one for each output
    component = Normal(draws.movedim(0, 1), tau**-0.5)
    weights = Categorical(torch.ones(points, samples, dtype=torch.float64))
    mixture = MixtureSameFamily(weights, Independent(component, 1) if outputs else component)
    expected = mixture.log_prob(target).mean().item()
    assert F.log_predictive_density(draws, target, tau).item() == pytest.approx(expected, rel=1e-10)
    assert F.log_predictive_density(iter(draws), target, tau).item() == pytest.approx(expected, rel=1e-10)


def test_a_far_target_does_not_underflow() -> None:
    value = F.log_predictive_density(torch.zeros(10, 1), torch.tensor([1e4]), precision=0.1)
    assert value.item() == pytest.approx(0.5 * math.log(0.1 / (2 * math.pi)) - 0.05 * 1e8, rel=1e-12)


Errors = dict[str, list[float]]


@st.composite
def models(draw: st.DrawFn) -> tuple[Errors, float, Errors, float]:
    severities, clean = draw(st.integers(1, 5)), st.floats(0.0, 0.29)
    errors, baseline = (
        {name: draw(st.lists(st.floats(least, 1.0), min_size=severities, max_size=severities)) for name in "abc"}
        for least in (0.0, 0.3)
    )
    return errors, draw(clean), baseline, draw(clean)


@given(models())
def test_the_formulas(model: tuple[Errors, float, Errors, float]) -> None:
    errors, clean, baseline, baseline_clean = model
    ce = {c: 100 * sum(errors[c]) / sum(baseline[c]) for c in errors}
    assert {c: v.item() for c, v in F.corruption_error(errors, baseline).items()} == pytest.approx(ce, rel=1e-9)
    assert F.mean_corruption_error(errors, baseline).item() == pytest.approx(sum(ce.values()) / 3, rel=1e-9)
    for denominator, other in (("baseline", baseline_clean), ("own", clean)):
        rce = {
            c: 100 * (sum(errors[c]) - len(errors[c]) * clean) / (sum(baseline[c]) - len(errors[c]) * other)
            for c in errors
        }
        values = F.relative_corruption_error(*model, denominator)
        assert {c: v.item() for c, v in values.items()} == pytest.approx(rce, rel=1e-7, abs=1e-7)
        mean = F.relative_mean_corruption_error(*model, denominator).item()
        assert mean == pytest.approx(sum(rce.values()) / 3, rel=1e-7, abs=1e-7)
