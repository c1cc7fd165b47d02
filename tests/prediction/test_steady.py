"""Draws at one place are those that the model makes from its noise; and when no pass is watched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

import byov
from byov.prediction import engine, forward
from byov.prediction.reuse import Recording, record
from byov.prediction.steady import Steady

FAMILIES = [byov.Gaussian(-3.0), byov.Dropout(0.3), byov.DropConnect(0.3), byov.EMP(3, spread=0.5), byov.ECMP(3)]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.other(torch.relu(self.one(x))))


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("mixed", [False, True])
def test_draws_at_one_place_are_the_model_s(family: Any, mixed: bool) -> None:
    rules = {byov.output_layer: byov.Gaussian(-1.0), "*": family} if mixed else family
    model = byov.bayesianize(Tied(), rules)
    steady, places = Steady(model), None
    with torch.no_grad():
        for _ in range(3):
            noise = model.noise()
            drawn, expected = steady(noise), model.tensors(noise)
            assert list(drawn) == list(expected)
            for name, value in expected.items():
                torch.testing.assert_close(drawn[name], value)
            now = {name: tensor.data_ptr() for name, tensor in drawn.items()}
            assert places in (None, now)
            places = now
    assert drawn["one.weight"].data_ptr() == drawn["other.weight"].data_ptr()


def test_several_draws_of_a_gaussian_are_the_model_s_own() -> None:
    """Their noise too: the same numbers as one draw after the other has, so that every strategy gives the same."""
    model = byov.bayesianize(Tied(), {byov.output_layer: byov.Gaussian(-1.0), "*": byov.Gaussian(-3.0)})
    generators = [Generator().manual_seed(3) for _ in range(2)]
    steady = Steady(model)
    with torch.no_grad():
        stacked = steady.several(steady.noises(4, generators[0]))
        for i in range(4):
            expected = model.tensors(model.noise(generators[1]))
            assert list(stacked) == list(expected)
            for name, value in expected.items():
                torch.testing.assert_close(stacked[name][i], value)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())
    assert not Steady(byov.bayesianize(Tied(), byov.EMP(3))).all_gaussian


@pytest.mark.parametrize("batched", [True, False])
def test_without_a_race_the_draws_are_the_same(batched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way a GPU goes where most of a pass is shared; also for a network whose draws cannot be batched."""

    class Reads(Tied):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            return out if batched else out * (out.detach().abs().sum().item() > 0)

    torch.manual_seed(0)
    model, x = byov.bayesianize(Reads(), {byov.output_layer: byov.Gaussian(-1.0)}), torch.randn(6, 4)
    expected = byov.predict(model, x, 9, "loop", generator=Generator().manual_seed(0), keep=True)
    race = engine.Call._unmatched
    monkeypatch.setattr(engine.Call, "_race", lambda self, running, draws, most: race(self, running, draws, most))
    found = byov.predict(model, x, 9, generator=Generator().manual_seed(0), keep=True)
    assert found.strategy == ("vmap" if batched else "loop")
    torch.testing.assert_close(found.draws, expected.draws)
    torch.testing.assert_close(found.std, expected.std)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws at one place, and no race where most of a pass is shared."""
    whole = engine.Call._unmatched
    monkeypatch.setattr(engine.Call, "_race", lambda self, running, draws, most: whole(self, running, draws, most))
    monkeypatch.setattr(Steady, "suits", staticmethod(lambda model: True))
    monkeypatch.setattr(Recording, "useful", property(lambda self: self.sound))


class Halves(nn.Linear):
    """Writes into its weights, after they were used."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight
        out = nn.functional.linear(x, weight, self.bias)
        weight.mul_(0.5)
        return out


class Reads(nn.Linear):
    """Cannot be batched, on batches of another size than five."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out if len(x) == 5 else out * (1 + (out.sum().item() > 0))


@dataclass(frozen=True)
class Stubborn(byov.Gaussian):
    """A family whose draws cannot be batched."""

    def draw(self, roles: Any, cells: Any, noise: Any) -> Tensor:
        assert noise["eps"].max().item() < 100
        return super().draw(roles, cells, noise)


@pytest.mark.parametrize(
    ("out", "family", "strategy"),
    [
        (nn.Linear(4, 3), byov.Gaussian(-1.0), "vmap"),
        (Halves(4, 3), byov.Gaussian(-1.0), "vmap"),
        (Reads(4, 3), byov.Gaussian(-1.0), "loop"),
        (nn.Linear(4, 3), Stubborn(-1.0), "loop"),
    ],
    ids=["plain", "writes into its weights", "one batch cannot be batched", "its draws cannot be batched"],
)
def test_batches_of_a_window_without_a_race(out: nn.Module, family: Any, strategy: str, as_on_a_gpu: None) -> None:
    net, x = Tied(), torch.randn(12, 4)
    net.out = out
    model, found = byov.bayesianize(net, {byov.output_layer: family}), []
    for name in ("loop", "auto"):
        loader = [x[:5], x[5:10], x[10:]]
        found.append(byov.predict(model, loader, 9, name, generator=Generator().manual_seed(0), keep=True))  # type: ignore[arg-type]
    torch.testing.assert_close(found[1].draws, found[0].draws)
    assert found[1].strategy == strategy


@pytest.mark.skipif(not torch.cuda.is_available(), reason="draws at one place are a GPU's")
@pytest.mark.parametrize("generator", ["none", "cuda", "cpu"])
def test_on_a_gpu_a_random_head_is_batched_at_once(generator: str) -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), *(nn.Linear(64, 64) for _ in range(8)), nn.Linear(64, 10))
    model = byov.bayesianize(net.cuda(), {byov.output_layer: byov.Gaussian(-1.0)})
    x, found = torch.randn(500, 64).cuda(), []
    for strategy in ("loop", "vmap", "auto"):
        torch.manual_seed(5)
        own = None if generator == "none" else Generator(generator).manual_seed(5)
        found.append(byov.predict(model, x, 150, strategy, generator=own, keep=True))  # type: ignore[arg-type]
    assert [each.strategy for each in found] == ["loop", "vmap", "vmap"]
    for each in found[1:]:
        torch.testing.assert_close(each.draws, found[0].draws, rtol=1e-4, atol=1e-5)


def test_it_is_for_gpus_and_for_factors_without_a_state() -> None:
    assert not Steady.suits(byov.bayesianize(Tied(), byov.Gaussian()))
    if torch.cuda.is_available():
        net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda()
        assert Steady.suits(byov.bayesianize(net, byov.Gaussian()))
        assert not Steady.suits(byov.bayesianize(net, byov.Ensemble(3)))


def test_a_compiled_network_is_not_watched_where_everything_is_random(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[object] = []
    runs: list[Recording] = []

    def watching(*args: Any) -> Any:
        watched.append(args)
        out, recording = record(*args)
        runs.append(recording)
        return out, recording

    monkeypatch.setattr(forward, "record", watching)
    x = torch.randn(6, 4)
    for compiled, rules, expected in (
        (False, byov.Gaussian(-3.0), 1),
        (True, byov.Gaussian(-3.0), 0),
        (True, {byov.output_layer: byov.Gaussian(-3.0)}, 1),
    ):
        model = byov.bayesianize(Tied(), rules)
        by_hand = byov.predict(model, x, 7, "loop", generator=Generator().manual_seed(0))
        if compiled:
            model.net.compile(backend="eager")
        watched.clear()
        found = byov.predict(model, x, 7, generator=Generator().manual_seed(0))
        assert len(watched) == expected
        torch.testing.assert_close(found.mean, by_hand.mean)
        if watched:  # and what no draw touches was seen, compiled or not
            assert bool(runs[-1].useful) is isinstance(rules, dict)
    assert byov.predict(model, x, 7, "vmap").strategy == "vmap"  # whoever asks for batched draws gets them
