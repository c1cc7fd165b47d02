"""Draws in the same memory are the draws that the model makes, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

import byov
from byov.posterior.random import BLOCK
from byov.prediction import in_place
from byov.prediction.draws import Draws
from byov.prediction.in_place import InPlace

from .networks import by_hand


class Tied(nn.Module):
    """Weights under two names, a bias, and a clip that writes into what it was handed."""

    def __init__(self, width: int, clip: bool = False) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(width, width), nn.Linear(width, width)
        self.other.weight = self.one.weight
        self.clip = clip

    def forward(self, x: Tensor) -> Tensor:
        if self.clip:
            with torch.no_grad():
                self.one.weight.clamp_(-0.05, 0.05)
        return self.other(torch.relu(self.one(x)))


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def spread(model: byov.BayesianModule) -> byov.BayesianModule:
    """σ of its own for every weight."""
    with torch.no_grad():
        model.factors[0].get_parameter("log_var").uniform_(-8.0, -2.0)
    return model


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("cores", [1, 2])
def test_large_draws_are_the_models_own_to_the_bit(cores: int, once: bool, threads: Callable[[int], None]) -> None:
    """1.1 M weights: three blocks of noise, the last of which is cut off, with one and with two threads."""
    threads(cores)
    model = spread(byov.bayesianize(Tied(1049), byov.Gaussian()))
    assert model.factors[0].layout.numel > 2 * BLOCK
    assert model.factors[0].layout.numel % 16
    assert InPlace.suits(model)
    draws, generator = Draws(model, seeded(), once), seeded()
    with torch.no_grad():
        for _ in range(3):
            found, expected = draws.next()(), model.tensors(model.noise(generator))
            assert list(found) == list(expected)
            assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_draws_lie_in_the_same_memory_and_need_no_gradient() -> None:
    model = byov.bayesianize(Tied(1049), byov.Gaussian())
    draws = Draws(model, seeded())
    first = draws.next()()["one.weight"]
    place, values = first.data_ptr(), first.clone()
    second = draws.next()()["one.weight"]
    assert second.data_ptr() == place
    assert not torch.equal(second, values)
    assert not second.requires_grad


def test_stacked_draws_are_the_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "LARGE", 1)
    model = spread(byov.bayesianize(Tied(5), byov.Gaussian()))
    draws = Draws(model, seeded())
    noises = draws.noises(3)
    stacked = draws.stack(noises)()
    for i, noise in enumerate(noises):
        for name, tensor in draws.of(noise)().items():
            torch.testing.assert_close(stacked[name][i], tensor, rtol=0, atol=1e-7)


@pytest.mark.parametrize("samples", [1, 9])
@pytest.mark.parametrize("strategy", ["loop", "vmap", "auto"])
def test_predictions_are_those_by_hand(strategy: Any, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "LARGE", 1)
    model, x = spread(byov.bayesianize(Tied(6), byov.Gaussian())), torch.randn(4, 6)
    found = byov.predict(model, x, samples, strategy, generator=seeded(5), keep=True)
    torch.testing.assert_close(found.draws, by_hand(model, x, samples, seed=5), rtol=0, atol=1e-6)


@pytest.mark.parametrize("once", [False, True])
def test_weights_that_were_written_into_are_made_again(once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where σ has given its memory to them."""
    monkeypatch.setattr(in_place, "LARGE", 1)
    model = spread(byov.bayesianize(Tied(5), byov.Gaussian()))
    weights = Draws(model, seeded(), once).next()
    drawn = weights()["one.weight"].clone()
    weights()["one.weight"].zero_()
    assert torch.equal(weights()["one.weight"], drawn)


@pytest.mark.parametrize("samples", [1, 5])
def test_a_network_that_clips_its_weights_predicts_as_with_small_ones(
    samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = spread(byov.bayesianize(Tied(6, clip=True), byov.Gaussian())), torch.randn(8, 6)
    expected = byov.predict(model, list(x.split(2)), samples, "loop", generator=seeded(5), keep=True)
    monkeypatch.setattr(in_place, "LARGE", 1)
    found = byov.predict(model, list(x.split(2)), samples, "loop", generator=seeded(5), keep=True)
    torch.testing.assert_close(found.draws, expected.draws, rtol=0, atol=1e-6)


def test_only_one_large_gaussian_is_drawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not InPlace.suits(byov.bayesianize(Tied(5), byov.Gaussian()))
    monkeypatch.setattr(in_place, "LARGE", 1)
    assert InPlace.suits(byov.bayesianize(Tied(5), byov.Gaussian()))
    assert not InPlace.suits(byov.bayesianize(Tied(5), byov.DropConnect(0.1)))
    two = {"one.*": byov.Gaussian(), "other.bias": byov.DropConnect(0.1)}
    assert not InPlace.suits(byov.bayesianize(Tied(5), two))
