"""The batches of a loader share their draws, and every number is that of a batch by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.flop_counter import FlopCounterMode

import byov
from byov.posterior import Family
from byov.prediction import draws, engine, serving, window
from byov.prediction.draws import Weights
from byov.prediction.running import Running
from byov.prediction.steady import Steady

from .networks import FAMILIES, NETWORKS, NarrowResNet18, Tied, by_hand, digits, mlp, spread, trained
from .test_reuse import RANDOM, CountsInABuffer, DrawsInPython, DrawsNoise, Net, WritesItsInput, seed_everything
from .test_strategies import STRATEGIES, Stubborn, same, seeded

SIZES = (3, 5, 1, 4)


def split(x: Tensor) -> list[Tensor]:
    return [part.clone() for part in x.split(list(SIZES))]  # aligned alike: how memory lies decides the last bit


def alone(model: byov.BayesianModule, batches: list[Tensor], samples: int, softmax: bool = True) -> Tensor:
    """What each draw predicts (S, N, …), written by hand: batch after batch, the draws made again for each."""
    return torch.cat([by_hand(model, batch, samples, seed=7, softmax=softmax) for batch in batches], dim=1)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often noise is drawn, and weights are made from it."""
    calls = {"noise": 0, "tensors": 0}

    def counted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            calls[name] += 1
            return work(*args)

        return call

    monkeypatch.setattr(byov.BayesianModule, "noise", counted("noise", byov.BayesianModule.noise))
    monkeypatch.setattr(draws, "Weights", lambda make, *roots: Weights(counted("tensors", make), *roots))
    return calls


# The numbers


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: type(f).__name__)
def test_every_batch_has_the_numbers_it_has_by_itself(family: Family, kind: str) -> None:
    make, batch = NETWORKS[kind]
    model, batches = spread(byov.bayesianize(make(), family)), [batch(), batch()[:1], batch()]
    expected = alone(model, batches, 5)
    found = byov.predict(model, batches, 5, "loop", generator=seeded(), keep=True)
    # Attention runs as one operation where nobody listens, and as several in the first pass: other last bits.
    assert_close(found.draws, expected, rtol=0, atol=1e-6 if kind == "torchvision-vit" else 0)
    one_by_one = [byov.predict(model, x, 5, "loop", generator=seeded()) for x in batches]
    for name in ("mean", "std", "entropy", "expected_entropy", "mutual_information"):
        assert torch.equal(getattr(found, name), torch.cat([getattr(part, name) for part in one_by_one]))
    assert_close(found.mean, expected.mean(0), rtol=0, atol=1e-6)
    for strategy in ("vmap", "auto"):
        found = byov.predict(model.double(), to_double(batches), 5, strategy, generator=seeded(), keep=True)
        assert_close(found.draws, alone(model, to_double(batches), 5), rtol=0, atol=1e-12)


def to_double(batches: list[Tensor]) -> list[Tensor]:
    return [x.double() if x.is_floating_point() else x for x in batches]


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    batches=st.integers(1, 5),
    inputs=st.integers(1, 20),
    strategy=st.sampled_from(STRATEGIES),
    samples=st.integers(1, 9),
)
def test_neither_batches_nor_windows_show(
    sizes: list[int], batches: int, inputs: int, strategy: Any, samples: int
) -> None:
    torch.manual_seed(0)
    model, x = spread(byov.bayesianize(mlp(), byov.Gaussian(-3.0))).double(), torch.randn(sum(sizes), 6).double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "BATCHES", batches)
        patch.setattr(window, "INPUTS", inputs)
        found = byov.predict(model, iter(x.split(sizes)), samples, strategy, generator=seeded(), keep=True)
    assert_close(found.draws, by_hand(model, x, samples, seed=7), rtol=0, atol=1e-12)
    same(found, byov.predict(model, x, samples, strategy, generator=seeded()))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_input_of_every_batch_stops_by_itself(strategy: Any, made: dict[str, int]) -> None:
    model, x = copy.deepcopy(trained(byov.Dropout(0.1))).double(), digits()[2][:45].double()
    settings = {"samples": 300, "strategy": strategy, "tolerance": 0.012}
    parts = x.split([20, 1, 24])
    one_by_one = [byov.predict(model, part, generator=seeded(), **settings) for part in parts]
    made["noise"] = 0
    found = byov.predict(model, (part for part in parts), generator=seeded(), **settings)
    used = torch.cat([part.samples for part in one_by_one])
    assert torch.equal(found.samples, used)
    assert set(used.tolist()) <= {32, 64, 96, 144, 216, 300}
    assert len(set(used.tolist())) >= 4
    assert int(one_by_one[1].samples) < int(used.max())  # a whole batch stops before the others
    assert made["noise"] == int(used.max())
    for name in ("mean", "std", "mutual_information"):
        expected = torch.cat([getattr(part, name) for part in one_by_one])
        assert_close(getattr(found, name), expected, rtol=0, atol=0 if strategy == "loop" else 1e-10)


def test_mappings_and_regressions_too() -> None:
    line, x = byov.bayesianize(nn.Linear(3, 2), byov.Gaussian(-2.0)), torch.randn(13, 3)
    loader = [{"input": part} for part in split(x)]
    found = byov.predict(line, loader, 6, "loop", generator=seeded(), task="regression", keep=True)
    assert torch.equal(found.draws, alone(line, split(x), 6, softmax=False))
    tokens = [torch.randint(7, (size, length)) for size, length in ((4, 3), (2, 3))]
    words = byov.bayesianize(Tied(), byov.Gaussian(-2.0))
    found = byov.predict(words, [{"tokens": t} for t in tokens], 6, "loop", generator=seeded(), keep=True)
    assert torch.equal(found.draws, alone(words, tokens, 6))


# What it saves


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_draw_is_made_once_for_a_window(strategy: Any, made: dict[str, int]) -> None:
    model = byov.bayesianize(mlp(), byov.Gaussian())
    for batches, size in ((1, 2), (window.BATCHES, 2), (2 * window.BATCHES + 1, 2), (4, window.INPUTS // 4), (3, 600)):
        made.update(noise=0, tensors=0)
        byov.predict(model, torch.randn(batches * size, 6).split(size), 9, strategy)
        windows = ceil(batches / min(window.BATCHES, window.INPUTS // size or 1))
        assert made["noise"] == 9 * windows
        # Batched weights are made at once; what lost the race on the first batch is made again for the others.
        assert made["tensors"] <= (9 + 4 * (strategy == "auto")) * windows
        assert strategy != "loop" or made["tensors"] == 9 * windows
        assert strategy != "vmap" or made["tensors"] == 2 * windows


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_what_no_draw_touches_is_still_computed_once_for_each_batch(strategy: Any) -> None:
    net, batches = NarrowResNet18().eval(), [torch.randn(size, 3, 32, 32) for size in (2, 1, 2)]
    model = byov.bayesianize(net, {byov.output_layer: byov.Gaussian()})
    with FlopCounterMode(display=False) as once:
        for x in batches:
            net(x)
    with FlopCounterMode(display=False) as counter:
        byov.predict(model, batches, 10, strategy)
    assert counter.get_total_flops() == once.get_total_flops() + 9 * 5 * (2 * 64 * 3)


def test_the_standard_deviations_are_computed_once_for_all_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    class Exponentials(torch.overrides.TorchFunctionMode):
        count = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += func is torch.exp
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr(window, "BATCHES", 2)
    model = byov.bayesianize(nn.Linear(5, 3), byov.Gaussian())
    with Exponentials() as mode:
        byov.predict(model, torch.randn(20, 5).split(2), 10, "loop")
    assert mode.count == 1


# The race


@pytest.mark.parametrize("winner", ["loop", "vmap"])
def test_the_first_batch_decides_and_the_others_follow(winner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clock: one draw takes 0.1 s, then a chunk of them 0.01 s each, or 1 s each."""
    clock = iter([0.0, 0.0, 0.1, 0.1, 0.1, 0.1 + (0.05 if winner == "vmap" else 5.0)])
    monkeypatch.setattr(engine, "_now", lambda device: next(clock))
    model, x = spread(byov.bayesianize(mlp(), byov.Gaussian(-3.0))).double(), torch.randn(13, 6).double()
    monkeypatch.setattr(window, "BATCHES", 3)
    found = byov.predict(model, split(x), 12, "auto", generator=seeded(), keep=True)
    assert found.strategy == winner
    assert next(clock, None) is None
    assert_close(found.draws, by_hand(model, x, 12, seed=7), rtol=0, atol=1e-12)


def test_a_network_that_vmap_cannot_batch() -> None:
    model, x = byov.bayesianize(Stubborn(), {"b.*": byov.Gaussian(-2.0)}), torch.randn(13, 6)
    found = byov.predict(model, split(x), 10, "auto", generator=seeded(), keep=True)
    assert found.strategy == "loop"
    assert torch.equal(found.draws, alone(model, split(x), 10))
    with pytest.raises(ValueError, match="vmap cannot batch this network's draws"):
        byov.predict(model, split(x), 10, "vmap")


def test_a_network_that_vmap_can_batch_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Single inputs it takes, several it does not; every batch gets every draw once."""

    class Sometimes(Stubborn):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if len(x) > 1 else self.a(x) + self.b(x)

    clock = iter([0.0, 0.0, 0.1, 0.1, 0.1, 0.11])  # by which batching wins
    monkeypatch.setattr(engine, "_now", lambda device: next(clock))
    monkeypatch.setattr(Running, "repeats", True)  # else it would go batch by batch
    model = byov.bayesianize(Sometimes(), {"b.*": byov.Gaussian(-2.0)})
    batches = list(torch.randn(6, 6).split([1, 2, 1, 2]))
    found = byov.predict(model, batches, 10, "auto", generator=seeded(), keep=True)
    assert found.strategy == "loop"
    assert_close(found.draws, alone(model, batches, 10))


def test_batched_attention_is_not_run_as_one_operation() -> None:
    """That one has no batching rule; the user's own setting is back afterwards."""
    seen: set[bool] = set()

    class Asks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.add(torch.backends.mha.get_fastpath_enabled())
            return super().forward(x)

    model, x = byov.bayesianize(Asks(6, 3), byov.Gaussian()), torch.randn(4, 6)
    byov.predict(model, x, 5, "loop")
    assert seen == {True}
    byov.predict(model, x, 5, "vmap")
    assert seen == {True, False}
    assert torch.backends.mha.get_fastpath_enabled()


# Networks and loaders that could trip it


@pytest.mark.parametrize("steady", [False, True])
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_a_network_that_writes_into_its_weights(strategy: Any, steady: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where every draw lies in one place, as on a GPU."""
    monkeypatch.setattr(Steady, "suits", lambda model: steady)

    class Halves(Net):
        def forward(self, x: Tensor) -> Tensor:
            self.random.weight.mul_(0.5)
            return self.random(self.fixed(x))

    model, x = byov.bayesianize(Halves(), RANDOM), torch.randn(13, 5)
    found = byov.predict(model, split(x), 6, strategy, generator=seeded(), keep=True)
    assert_close(found.draws, alone(model, split(x), 6), rtol=0, atol=1e-6)


@pytest.mark.parametrize("net", [DrawsNoise, DrawsInPython, CountsInABuffer, WritesItsInput], ids=lambda n: n.__name__)
def test_a_network_with_a_state_of_its_own_goes_batch_by_batch(net: type[Net]) -> None:
    model, x = byov.bayesianize(net(), RANDOM), torch.randn(13, 5)
    other = copy.deepcopy(model)
    seed_everything()
    expected = alone(other, split(x.clone()), 6)
    seed_everything()
    found = byov.predict(model, split(x), 6, "loop", generator=seeded(), keep=True)
    assert torch.equal(found.draws, expected)


def test_hooks_see_every_pass_batch_by_batch() -> None:
    model, seen = byov.bayesianize(mlp(), byov.Gaussian()), []
    model.net[0].register_forward_hook(lambda module, args, out: seen.append(len(out)))
    byov.predict(model, torch.randn(13, 6).split(SIZES), 3, "loop")
    assert seen == [size for size in SIZES for _ in range(3)]


def test_a_loader_may_fill_the_same_memory_again() -> None:
    x, memory = torch.randn(12, 6), torch.empty(3, 6)

    def loader() -> Iterator[tuple[Tensor, None]]:
        for part in x.split(3):
            yield memory.copy_(part), None

    model = spread(byov.bayesianize(mlp(), byov.Gaussian(-3.0)))
    for batches in (loader(), ({"input": part} for part, _ in loader())):
        found = byov.predict(model, batches, 6, "loop", generator=seeded(), keep=True)
        assert torch.equal(found.draws, alone(model, [part.clone() for part in x.split(3)], 6))


def test_a_plain_network_takes_one_pass_for_each_batch() -> None:
    net, x, seen = mlp().eval(), torch.randn(13, 6), []
    net.register_forward_hook(lambda module, args, out: seen.append(len(out)))
    found = byov.predict(net, (part for part in split(x)), 50)
    assert seen == list(SIZES)
    assert_close(found.mean, net(x).softmax(1))


def test_the_generator_ends_where_one_batch_leaves_it() -> None:
    model, x = byov.bayesianize(mlp(), byov.Gaussian()), torch.randn(13, 6)
    one, several = seeded(), seeded()
    byov.predict(model, x, 5, generator=one)
    byov.predict(model, split(x), 5, generator=several)
    assert torch.equal(one.get_state(), several.get_state())


# The progress bar


@pytest.mark.parametrize("tolerance", [None, 0.02, 0.04])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_progress_comes_in_small_parts_and_adds_up(
    strategy: Any, tolerance: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[float] = []

    @contextmanager
    def progress(batches: Any, asked: bool | None) -> Iterator[Callable[[float], None]]:
        yield steps.append

    monkeypatch.setattr(serving, "_progress", progress)
    monkeypatch.setitem(engine.CHUNK_ELEMENTS, "cpu", 1 << 13)
    model, x = trained(byov.Dropout(0.1)), digits()[2][:100]
    byov.predict(model, x.split(10), 100, strategy, tolerance)
    assert sum(steps) == pytest.approx(10)
    assert min(steps) >= 0
    assert max(steps) < 10 if tolerance else max(steps) <= 5


def test_a_stream_without_a_length() -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[Tensor]:
            yield from x

    x = torch.randn(11, 6)
    model = byov.bayesianize(mlp(), byov.Gaussian(-3.0))
    found = byov.predict(model, DataLoader(Stream(), batch_size=4), 5, "loop", generator=seeded(), progress=True)
    assert_close(found.mean, by_hand(model, x, 5, seed=7).mean(0))
