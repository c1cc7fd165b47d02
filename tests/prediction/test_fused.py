"""Draws made block by block are those that the model makes from its noise, up to float32's rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

import byov
from byov.posterior import blocks
from byov.prediction import forward
from byov.prediction.draws import Draws
from byov.prediction.fused import MANY, Fused
from byov.prediction.reuse import record

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


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that small networks have several of them, and are drawn block by block."""
    monkeypatch.setattr(blocks, "BLOCK", 8)


@pytest.mark.parametrize("samples", [MANY - 1, MANY])
@pytest.mark.parametrize("cores", [1, 2])
def test_large_draws_are_the_models_own(cores: int, samples: int, threads: Callable[[int], None]) -> None:
    """1.1 M weights: three blocks of noise, the last of which is cut off, with one and with two threads."""
    threads(cores)
    model = spread(byov.bayesianize(Tied(1049), byov.Gaussian()))
    assert model.factors[0].layout.numel > 2 * blocks.BLOCK
    assert model.factors[0].layout.numel % 16
    draws, generator = Draws(model, seeded(), samples), seeded()
    assert Fused.suits(model)
    with torch.no_grad():
        for _ in range(3):
            found, expected = draws.next()(), model.tensors(model.noise(generator))
            assert list(found) == list(expected)
            for name in expected:
                torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-6)


def test_draws_do_not_depend_on_the_number_of_cores(threads: Callable[[int], None]) -> None:
    model, found = spread(byov.bayesianize(Tied(1049), byov.Gaussian())), []
    for cores in (1, 2, 3):
        threads(cores)
        draws = Draws(model, seeded(), 2)
        found.append([torch.cat([tensor.flatten() for tensor in draws.next()().values()]) for _ in range(2)])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("samples", [MANY - 1, MANY])
@pytest.mark.parametrize("count", [17, 23, 24, 25, 31, 32, 33])
def test_any_number_of_weights_is_drawn_as_by_its_formula(count: int, samples: int) -> None:
    """Blocks that are full, cut off, or of a single weight, draw after draw: μ + exp(½ρ)·ε with the model's noise."""
    model = spread(byov.bayesianize(nn.Linear(count, 1, bias=False), byov.Gaussian()))
    mean, log_var = (model.factors[0].get_parameter(role).detach() for role in ("mean", "log_var"))
    assert Fused.suits(model)
    draws, generator = Draws(model, seeded(), samples), seeded()
    for _ in range(3):
        expected = mean + torch.exp(0.5 * log_var) * model.noise(generator)[0]["eps"]
        torch.testing.assert_close(draws.next()()["weight"].flatten(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("small")
def test_draws_follow_the_global_seed_as_noise_does() -> None:
    model = spread(byov.bayesianize(Tied(5), byov.Gaussian()))
    torch.manual_seed(7)
    found = Draws(model, None, 2).next()()["one.weight"].clone()
    torch.manual_seed(7)
    torch.testing.assert_close(found, model.tensors(model.noise())["one.weight"].detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.usefixtures("small")
def test_draws_come_from_the_models_own_source_as_noise_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which under several processes is a generator for each of them."""
    model = spread(byov.bayesianize(Tied(5), byov.Gaussian()))
    monkeypatch.setattr(model, "source", lambda generator: seeded(9))
    found, expected = Draws(model, None, 2).next()()["one.weight"], model.tensors(model.noise())["one.weight"].detach()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_draws_lie_in_the_same_memory_and_need_no_gradient() -> None:
    model = byov.bayesianize(Tied(1049), byov.Gaussian())
    draws = Draws(model, seeded(), 2)
    first = draws.next()()["one.weight"]
    place, values = first.data_ptr(), first.clone()
    second = draws.next()()["one.weight"]
    assert second.data_ptr() == place
    assert not torch.equal(second, values)
    assert not second.requires_grad


@pytest.mark.usefixtures("small")
def test_stacked_draws_are_the_single_ones() -> None:
    model = spread(byov.bayesianize(Tied(5), byov.Gaussian()))
    draws = Draws(model, seeded(), 2)
    noises = draws.noises(3)
    stacked = draws.several(noises)()
    for i in range(3):
        noise = [{key: tensor[i] for key, tensor in part.items()} for part in noises]
        for name, tensor in draws.of(noise)().items():
            assert torch.equal(stacked[name][i], tensor)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("samples", [1, 9])
@pytest.mark.parametrize("strategy", ["loop", "vmap", "auto"])
def test_predictions_are_those_by_hand(strategy: Any, samples: int) -> None:
    model, x = spread(byov.bayesianize(Tied(6), byov.Gaussian())), torch.randn(4, 6)
    found = byov.predict(model, x, samples, strategy, generator=seeded(5), keep=True)
    torch.testing.assert_close(found.draws, by_hand(model, x, samples, seed=5), rtol=0, atol=1e-6)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("samples", [MANY - 1, MANY])
def test_sigma_is_that_of_the_call(samples: int) -> None:
    """One prediction after the other, between which the posterior has changed in ways that no version counts."""
    model, x = byov.bayesianize(Tied(6), byov.Gaussian(-8.0)), torch.randn(4, 6)
    for log_var in (-8.0, -3.0):
        model.factors[0].get_parameter("log_var").data.fill_(log_var)
        found = byov.predict(model, x, samples, "loop", generator=seeded(5), keep=True)
        torch.testing.assert_close(found.draws, by_hand(model, x, samples, seed=5), rtol=0, atol=1e-6)


def test_a_single_pass_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no other that could use it; a loader's passes are, since that tells whether batches may share a draw."""
    model, x = spread(byov.bayesianize(Tied(6), byov.Gaussian())), torch.randn(4, 6)
    calls: list[object] = []
    monkeypatch.setattr(forward, "record", lambda *args: calls.append(args) or record(*args))
    byov.predict(model, x, 1)
    assert not calls
    byov.predict(model, [x, x], 1)
    assert len(calls) == 2
    byov.predict(model, x, 2)
    assert len(calls) == 3


@pytest.mark.usefixtures("small")
def test_weights_that_were_written_into_are_made_again() -> None:
    model = spread(byov.bayesianize(Tied(5), byov.Gaussian()))
    draws = Draws(model, seeded(), 2)
    for _ in range(2):
        weights = draws.next()
        drawn = weights()["one.weight"].clone()
        weights()["one.weight"].zero_()
        assert torch.equal(weights()["one.weight"], drawn)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("samples", [1, 5])
def test_a_network_that_clips_its_weights_predicts_as_by_the_formula(
    samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = spread(byov.bayesianize(Tied(6, clip=True), byov.Gaussian())), torch.randn(8, 6)
    found = byov.predict(model, list(x.split(2)), samples, "loop", generator=seeded(5), keep=True)
    monkeypatch.setattr(Fused, "suits", lambda model: False)
    expected = byov.predict(model, list(x.split(2)), samples, "loop", generator=seeded(5), keep=True)
    torch.testing.assert_close(found.draws, expected.draws, rtol=0, atol=1e-6)


def test_draws_that_go_on_see_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 8)
    model = byov.bayesianize(Tied(5), byov.Gaussian(-2.0))
    draws = Draws(model, seeded(), MANY)
    draws.next()()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    draws.renew(seeded(3))
    expected = model.tensors(model.noise(seeded(3)))
    for name, tensor in draws.next()().items():
        torch.testing.assert_close(tensor, expected[name].detach(), rtol=0, atol=1e-5)


def test_only_one_large_gaussian_in_float32_is_drawn_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Fused.suits(byov.bayesianize(Tied(5), byov.Gaussian()))
    monkeypatch.setattr(blocks, "BLOCK", 8)
    assert Fused.suits(byov.bayesianize(Tied(5), byov.Gaussian()))
    assert not Fused.suits(byov.bayesianize(Tied(5).double(), byov.Gaussian()))
    assert not Fused.suits(byov.bayesianize(Tied(5), byov.DropConnect(0.1)))
    two = {"one.*": byov.Gaussian(), "other.bias": byov.DropConnect(0.1)}
    assert not Fused.suits(byov.bayesianize(Tied(5), two))
