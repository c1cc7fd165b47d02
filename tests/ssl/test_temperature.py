"""A temperature is found again and improves the likelihood; folds have their share of every class."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Generator, Tensor

from byov.metrics.functional import nll
from byov.ssl.temperature import RANGE, fit_temperature, folds, tempered


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


@given(st.lists(st.integers(2, 9), min_size=1, max_size=6), st.integers(2, 7), st.integers(0, 99))
def test_folds_have_their_share_of_every_class(sizes: list[int], count: int, seed: int) -> None:
    labels = torch.cat([torch.full((size,), c) for c, size in enumerate(sizes)])
    fold = folds(labels, count, seed)
    used = min(count, *sizes, 99)
    assert set(fold.tolist()) == set(range(used))
    for c, size in enumerate(sizes):
        shares = fold[labels == c].bincount(minlength=used)
        assert shares.sum() == size
        assert shares.max() - shares.min() <= 1
