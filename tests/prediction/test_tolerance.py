"""Draws until the Monte-Carlo error is small enough, each input by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_networks import mlp, seeded
from torch import Tensor
from torch.testing import assert_close

import byov

from .networks import by_hand

SAMPLES, TOLERANCE = 300, 0.012
LOOKS = (32, 64, 96, 144, 216, 300)


def standard_error(draws: Tensor) -> float:
    return float((draws.std(0) / len(draws) ** 0.5).max())


def until(model: byov.BayesianModule, x: Any, tolerance: float = TOLERANCE, samples: int = SAMPLES) -> byov.Prediction:
    return byov.predict(model, x, samples, tolerance=tolerance, generator=seeded())


@pytest.fixture(scope="module", params=["*", "3.*"], ids=["all", "head"])
def model(request: pytest.FixtureRequest) -> byov.BayesianModule:
    torch.manual_seed(3)
    return byov.bayesianize(mlp(), {request.param: byov.Dropout(0.1)}).double()


@pytest.fixture(scope="module")
def x() -> Tensor:
    """Inputs of all sizes, for which the draws agree more or less."""
    return (torch.randn(60, 6, generator=seeded()) * torch.linspace(0.02, 6.0, 60)[:, None]).double()


@pytest.mark.parametrize("strategy", ["loop", "vmap", "auto"])
def test_every_input_stops_at_the_first_look_below_the_tolerance(
    model: byov.BayesianModule, x: Tensor, strategy: Any
) -> None:
    """And its result is that of its own first draws: nothing about the other inputs shows, and their order is kept."""
    draws = by_hand(model, x, SAMPLES)
    found = byov.predict(model, x, SAMPLES, strategy, tolerance=TOLERANCE, generator=seeded())
    used = found.samples
    assert isinstance(used, Tensor)
    assert used.shape == (60,)
    assert set(used.tolist()) <= set(LOOKS)
    assert len(set(used.tolist())) >= 4
    for i, count in enumerate(used.tolist()):
        own = draws[:count, i]
        assert count == SAMPLES or standard_error(own) < TOLERANCE
        assert all(standard_error(draws[:look, i]) >= TOLERANCE for look in LOOKS if look < count)
        assert_close(found.mean[i], own.mean(0), rtol=0, atol=1e-12)
        assert_close(found.std[i], own.std(0, correction=0), rtol=0, atol=1e-10)
        assert_close(found.entropy[i], torch.special.entr(own.mean(0)).sum(), rtol=0, atol=1e-12)
        assert_close(found.expected_entropy[i], torch.special.entr(own).sum(1).mean(), rtol=0, atol=1e-12)


def test_the_company_of_an_input_does_not_matter(model: byov.BayesianModule, x: Tensor) -> None:
    whole, order = until(model, x), torch.randperm(len(x))
    shuffled, batches, mapping = (until(model, data) for data in (x[order], list(x.split(7)), {"input": x}))
    for name in ("mean", "std", "mutual_information", "samples"):
        value = getattr(whole, name)
        assert_close(getattr(shuffled, name), value[order], rtol=0, atol=1e-10)
        assert_close(getattr(batches, name), value, rtol=0, atol=1e-10)
        assert_close(getattr(mapping, name), value, rtol=0, atol=1e-10)


def test_loose_and_tight_tolerances(model: byov.BayesianModule, x: Tensor) -> None:
    tight = until(model, x, 1e-9)
    plain = byov.predict(model, x, SAMPLES, generator=seeded())
    assert_close(tight.mean, plain.mean, rtol=0, atol=1e-12)
    loose, few = until(model, x, 10.0), until(model, x, 10.0, samples=5)
    for found, draws in ((tight, SAMPLES), (loose, 32), (few, 5)):
        assert set(found.samples.tolist()) == {draws}  # type: ignore[union-attr]


def test_a_regression_stops_too() -> None:
    line = byov.bayesianize(torch.nn.Linear(1, 1, bias=False), byov.Gaussian(-2.0))
    x = torch.tensor([[0.0], [0.3], [30.0]])
    draws = by_hand(line, x, 200, softmax=False)
    found = byov.predict(line, x, 200, tolerance=0.02, generator=seeded(), task="regression", precision=1.0)
    used = found.samples.tolist()
    assert used[0] == 32
    assert used[2] == 200
    assert used == sorted(used)
    for i, count in enumerate(used):
        assert_close(found.mean[i], draws[:count, i].mean(0), rtol=1e-5, atol=1e-6)
