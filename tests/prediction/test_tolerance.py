"""Draws until the Monte-Carlo error is small enough, each input by itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Generator, Tensor
from torch.testing import assert_close

import byov

from .networks import by_hand, digits, trained

SAMPLES, TOLERANCE = 300, 0.012
LOOKS = (32, 64, 96, 144, 216, 300)


def seeded() -> Generator:
    return Generator().manual_seed(9)


def standard_error(draws: Tensor) -> float:
    return float((draws.std(0) / len(draws) ** 0.5).max())


@pytest.fixture(scope="module")
def model() -> byov.BayesianModule:
    return copy.deepcopy(trained(byov.Dropout(0.1))).double()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return digits()[2][:60].double()


@pytest.mark.parametrize("strategy", ["loop", "vmap", "auto"])
def test_every_input_stops_at_the_first_look_below_the_tolerance(
    model: byov.BayesianModule, x: Tensor, strategy: Any
) -> None:
    """And its result is that of its own first draws: nothing about the other inputs shows, and their order is kept."""
    draws = by_hand(model, x, SAMPLES, seed=9)
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
    whole = byov.predict(model, x, SAMPLES, tolerance=TOLERANCE, generator=seeded())
    order = torch.randperm(len(x))
    shuffled = byov.predict(model, x[order], SAMPLES, tolerance=TOLERANCE, generator=seeded())
    batches = byov.predict(model, list(x.split(7)), SAMPLES, tolerance=TOLERANCE, generator=seeded())
    mapping = byov.predict(model, {"input": x}, SAMPLES, tolerance=TOLERANCE, generator=seeded())
    for name in ("mean", "std", "mutual_information", "samples"):
        value = getattr(whole, name)
        assert_close(getattr(shuffled, name), value[order], rtol=0, atol=1e-10)
        assert_close(getattr(batches, name), value, rtol=0, atol=1e-10)
        assert_close(getattr(mapping, name), value, rtol=0, atol=1e-10)


def test_loose_and_tight_tolerances(model: byov.BayesianModule, x: Tensor) -> None:
    loose = byov.predict(model, x, SAMPLES, tolerance=10.0, generator=seeded())
    tight = byov.predict(model, x, SAMPLES, tolerance=1e-9, generator=seeded())
    plain = byov.predict(model, x, SAMPLES, generator=seeded())
    assert set(loose.samples.tolist()) == {32}
    assert set(tight.samples.tolist()) == {SAMPLES}
    assert_close(tight.mean, plain.mean, rtol=0, atol=1e-12)
    few = byov.predict(model, x, 5, tolerance=10.0, generator=seeded())
    assert set(few.samples.tolist()) == {5}


def test_a_regression_stops_too() -> None:
    line = byov.bayesianize(torch.nn.Linear(1, 1, bias=False), byov.Gaussian(-2.0))
    x = torch.tensor([[0.0], [0.3], [30.0]])
    draws = by_hand(line, x, 200, seed=9, softmax=False)
    found = byov.predict(line, x, 200, tolerance=0.02, generator=seeded(), task="regression", precision=1.0)
    used = found.samples.tolist()
    assert used[0] == 32
    assert used[2] == 200
    assert used == sorted(used)
    for i, count in enumerate(used):
        assert_close(found.mean[i], draws[:count, i].mean(0), rtol=1e-5, atol=1e-6)
