"""A temperature is found again, improves the likelihood, and goes where a prediction goes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Generator, Tensor, nn

import byov
from byov.metrics.functional import nll
from byov.posthoc.temperature import RANGE, fit_temperature, fit_vector

NET = nn.Linear(4, 3)
X, Y = torch.randn(60, 4), torch.randint(3, (60,))


def tempered(probs: Tensor, temperature: float) -> Tensor:
    return byov.Temperature(temperature).probabilities(probs)


def drawn(temperature: float, n: int = 20_000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Probabilities, and labels that are drawn from them at a temperature."""
    generator = Generator().manual_seed(seed)
    probs = (2 * torch.randn(n, 5, generator=generator, dtype=torch.float64)).softmax(1)
    return probs, torch.multinomial(tempered(probs, temperature), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("temperature", [0.5, 0.8, 1.0, 1.7])
def test_it_is_found_again(temperature: float) -> None:
    """From 20,000 labels to 3 % (its standard error is about 1 %)."""
    assert fit_temperature(*drawn(temperature)) == pytest.approx(temperature, rel=0.03)


@given(st.floats(0.3, 3.0), st.integers(0, 10_000))
def test_it_is_the_minimum_that_scipy_finds(temperature: float, seed: int) -> None:
    probs, labels = drawn(temperature, 60, seed)
    found = fit_temperature(probs, labels)
    score = lambda t: nll(tempered(probs, t), labels).item()  # noqa: E731
    best = minimize_scalar(score, bounds=(1 / RANGE, RANGE), method="bounded", options={"xatol": 1e-6})
    assert 1 / RANGE <= found <= RANGE
    assert score(found) <= best.fun + 1e-6


def test_labels_that_are_all_right_or_all_wrong_do_not_ask_for_zero_or_infinity() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    assert fit_temperature(probs, torch.tensor([0, 1])) == pytest.approx(1 / RANGE, rel=1e-6)
    assert fit_temperature(probs, torch.tensor([1, 0])) == pytest.approx(RANGE, rel=1e-6)
    assert tempered(torch.tensor([[1.0, 0.0]]), 0.5).tolist() == [[1.0, 0.0]]
    with pytest.raises(ValueError, match=r"^A temperature needs .*\.$"):
        fit_temperature(probs, torch.tensor([0]))


def test_a_factor_and_an_offset_of_each_class_are_found_again() -> None:
    """From 20,000 labels to 0.1; the offsets up to a constant, which no probability shows."""
    generator = Generator().manual_seed(0)
    probs = (2 * torch.randn(20_000, 4, generator=generator, dtype=torch.float64)).softmax(1)
    truth = byov.Temperature(1.0, torch.tensor([0.5, 1.0, 1.5, 0.8]), torch.tensor([0.6, -0.2, 0.0, -0.4]))
    labels = torch.multinomial(truth.probabilities(probs), 1, generator=generator)[:, 0]
    scale, offset = fit_vector(probs, labels, 1.0)
    assert truth.scale is not None
    assert truth.offset is not None
    torch.testing.assert_close(scale, truth.scale.double(), atol=0.1, rtol=0)
    torch.testing.assert_close(offset - offset.mean(), truth.offset.double(), atol=0.1, rtol=0)


def test_of_a_plain_network_it_is_the_logits_temperature() -> None:
    warm = byov.temperature(NET, [(X[:40], Y[:40]), (X[40:], Y[40:])])
    score = lambda t: nn.functional.cross_entropy(NET(X) / t, Y).item()  # noqa: E731
    best = minimize_scalar(score, bounds=(1 / RANGE, RANGE), method="bounded", options={"xatol": 1e-6})
    assert score(warm.value) <= best.fun + 1e-6
    torch.testing.assert_close(byov.predict(NET, X, temperature=warm).mean, (NET(X) / warm.value).softmax(1).detach())


@pytest.mark.parametrize("kind", ["scalar", "vector"])
def test_under_draws_it_improves_the_mean_and_leaves_what_the_draws_disagree_about(kind: str) -> None:
    model, draws = byov.bayesianize(NET, byov.Gaussian(-1.0)), lambda: Generator().manual_seed(3)
    warm = byov.temperature(model, (X, Y), kind, samples=20, generator=draws())  # type: ignore[arg-type]
    cold = byov.predict(model, X, 20, generator=draws())
    for found in (
        byov.predict(model, X, 20, generator=draws(), temperature=warm),
        byov.Serving(model, 20, temperature=warm)([X[:30], X[30:]], draws()),
    ):
        assert nll(found.mean, Y) < nll(cold.mean, Y) - 1e-3
        torch.testing.assert_close(found.mutual_information, cold.mutual_information)
        torch.testing.assert_close(found.expected_entropy + found.mutual_information, found.entropy)


def test_a_temperature_at_the_end_of_its_range_is_told() -> None:
    right = NET(X[:5]).argmax(1)
    with pytest.warns(UserWarning, match=r"at the end of its range, 0\.25: these 5 labels ask for even sharper"):
        assert byov.temperature(NET, (X[:5], right)).value == pytest.approx(1 / RANGE, rel=1e-6)


def test_tokens_and_a_single_logit() -> None:
    tokens, labels = X.view(6, 10, 4), Y.view(6, 10).clone()
    flat = byov.temperature(NET, (X[:50], Y[:50])).value
    labels[5] = -100
    warm = byov.temperature(NET, (tokens, labels), task="token")
    assert warm.value == pytest.approx(flat, rel=1e-5)
    assert byov.predict(NET, tokens, task="token", temperature=warm).mean.shape == (6, 10, 3)
    one = nn.Linear(4, 1)
    assert byov.temperature(one, (X, (Y > 0)[:, None].float()), task="classification").value > 0
