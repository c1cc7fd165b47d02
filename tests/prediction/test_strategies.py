"""Every way to go through the draws gives the numbers of a loop written by hand."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import byov
from byov.posterior import Family
from byov.prediction import head, strategies
from byov.prediction.result import Running

from .networks import FAMILIES, NETWORKS, STRATEGIES, Recurrent, by_hand, mlp, same, seeded, shared, spread

COVERS: dict[str, Any] = {"all": None, "output": byov.output_layer, "norms": byov.norm_layers}


@pytest.fixture
def model() -> byov.BayesianModule:
    return spread(byov.bayesianize(mlp(), byov.Gaussian(-4.0))).double()


@pytest.mark.parametrize("cover", COVERS)
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: type(f).__name__)
def test_every_family_on_every_network(family: Family, kind: str, cover: str) -> None:
    make, batch = NETWORKS[kind]
    model, x = byov.bayesianize(make(), family if cover == "all" else {COVERS[cover]: family}), batch()
    model = spread(model).double()  # a sum's order does not show in float64
    x = x.double() if x.is_floating_point() else x
    draws = by_hand(model, x, 6)
    assert float(draws.std(0).max()) > 1e-6
    ways = {strategy: byov.Serving(model, 6, strategy, keep=True) for strategy in ("loop", "vmap")}  # type: ignore[arg-type]
    ways["head" if cover == "output" and kind != "tied" else "loop"] = serving = byov.Serving(model, 6, keep=True)
    for used, way in [*ways.items(), (None, serving)]:
        found = way(x, seeded())
        assert_close(found.draws, draws, rtol=0, atol=1e-12)
        assert_close(found.mean, draws.mean(0), rtol=0, atol=1e-12)
        assert_close(found.std, draws.std(0, correction=0), rtol=0, atol=1e-9)
        assert found.samples == 6
        assert used in (None, found.strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("cover", ["*", "3.*", "0.*"])
def test_draws_are_those_of_sample(strategy: Any, cover: str) -> None:
    """In the plain network, with the weights that `model.sample` gives for the same generator."""
    torch.manual_seed(2)
    model, x = spread(byov.bayesianize(shared(), {cover: byov.Gaussian(-2.0)})), torch.randn(4, 6)
    drawn, net = model.sample(5, seeded()), model.point()
    expected = [functional_call(net, {n: d[i] for n, d in drawn.items()}, (x,)).softmax(1) for i in range(5)]
    found = byov.predict(model, x, 5, strategy, generator=seeded(), keep=True)
    assert_close(found.draws, torch.stack(expected).detach())


def test_families_mix() -> None:
    rules = {"0.*": byov.Gaussian(-4.0), byov.norm_layers: byov.EMP(3), byov.output_layer: byov.Dropout(0.3)}
    model, x = spread(byov.bayesianize(mlp(), rules)).double(), torch.randn(5, 6).double()
    for strategy in STRATEGIES:
        found = byov.predict(model, x, 9, strategy, generator=seeded(), keep=True)
        assert_close(found.draws, by_hand(model, x, 9), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", ["*", "3.*"])
@pytest.mark.parametrize("tolerance", [None, 0.02])
def test_equal_calls_give_equal_bits(rule: str, tolerance: float | None) -> None:
    model, x = spread(byov.bayesianize(mlp(), {rule: byov.Gaussian(-2.0)})), torch.randn(5, 6)
    one, other = (byov.predict(model, x, 70, tolerance=tolerance, generator=seeded()) for _ in range(2))
    same(one, other, atol=0)
    assert one.strategy == other.strategy


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_generator_moves_on_by_the_draws(model: byov.BayesianModule, strategy: Any) -> None:
    """So that two calls of few draws have those of one call of many."""
    x, generator = torch.randn(5, 6).double(), seeded()
    parts = [byov.predict(model, x, n, strategy, generator=generator, keep=True).draws for n in (1, 4, 2)]
    whole = byov.predict(model, x, 7, strategy, generator=seeded(), keep=True).draws
    assert_close(torch.cat(parts), whole, rtol=0, atol=1e-12)  # type: ignore[arg-type]


def test_the_global_stream_decides_without_a_generator(model: byov.BayesianModule) -> None:
    x = torch.randn(5, 6).double()
    for data in (x, [x[:2], x[2:]]):
        found = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            found += [byov.predict(model, data, 12), byov.predict(model, data, 12)]
        same(found[0], found[2])
        same(found[1], found[3])
        assert all(float((found[0].mean - other.mean).abs().max()) > 1e-6 for other in (found[1], found[4]))


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("inputs", [5, 40])
@pytest.mark.parametrize(("rule", "strategy"), [("*", "loop"), ("*", "vmap"), ("3.*", "auto")])
def test_the_size_of_a_chunk_does_not_show(
    chunk: int, inputs: int, rule: str, strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is bounded by the weights of the draws, their inputs or their outputs."""
    model, x = spread(byov.bayesianize(mlp(), {rule: byov.Gaussian(-2.0)})).double(), torch.randn(inputs, 6).double()
    whole, sizes = byov.predict(model, x, 13, strategy, generator=seeded(), keep=True), []
    monkeypatch.setattr(strategies, "TOGETHER", chunk * inputs * 3)
    monkeypatch.setitem(strategies.CHUNK, "cpu", chunk * max(99, inputs * 6))
    monkeypatch.setattr(head, "CHUNK", chunk * max(24, inputs * 3))
    take = Running.take
    monkeypatch.setattr(Running, "take", lambda self, out: sizes.append(len(out)) or take(self, out))
    found = byov.predict(model, x, 13, strategy, generator=seeded(), keep=True)
    assert max(sizes) == chunk
    same(found, whole)
    assert_close(found.draws, whole.draws, rtol=0, atol=1e-12)


class Alive(TorchDispatchMode):
    """Counts the numbers in tensors that were made and are still held, at the most."""

    def __init__(self) -> None:
        super().__init__()
        self.most, self.now = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor) and not any(tensor is arg for arg in args):
                self.now += tensor.numel()
                weakref.finalize(tensor, self._gone, tensor.numel())
        self.most = max(self.most, self.now)
        return out

    def _gone(self, count: int) -> None:
        self.now -= count


@pytest.mark.parametrize(("rule", "strategy"), [("*", "loop"), ("*", "vmap"), ("3.*", "auto")])
def test_memory_does_not_grow_with_the_draws(rule: str, strategy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(strategies.CHUNK, "cpu", 4 * 107)
    monkeypatch.setattr(head, "CHUNK", 4 * 24)
    model, x = byov.bayesianize(mlp(), {rule: byov.Gaussian()}), torch.randn(5, 6)

    def most(samples: int, **options: Any) -> int:
        with Alive() as alive:
            byov.predict(model, x, samples, strategy, **options)
        return alive.most

    assert most(41) == most(161)
    assert most(161, keep=True) > most(161) + 100 * 5 * 3
    assert most(161, tolerance=1e-9) < 2 * most(161)


class Stubborn(nn.Module):
    """Cannot be batched: a draw is written into a tensor that all draws share."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.a(x)
        out += self.b(x)
        return out


def test_a_network_that_vmap_cannot_batch() -> None:
    model, x = byov.bayesianize(Stubborn(), {"b.*": byov.Gaussian(-2.0)}), torch.randn(4, 6)
    for strategy in ("auto", "loop"):
        found = byov.predict(model, x, 10, strategy, generator=seeded(), keep=True)  # type: ignore[arg-type]
        assert found.strategy == "loop"
        assert torch.equal(found.draws, by_hand(model, x, 10))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"^torch.vmap cannot batch this network .*: use strategy='loop'\.$"):
        byov.predict(model, x, 10, "vmap")


def test_vmap_refuses_an_lstm() -> None:
    """torch has no batching rule for it."""
    model, x = byov.bayesianize(Recurrent(), {"lstm.*": byov.Gaussian(0.0)}), torch.randn(4, 6)
    with pytest.raises(RuntimeError, match=r"cannot batch this network .*: use strategy='loop'"):
        byov.predict(model, x, 6, "vmap")


def test_batched_attention_is_not_run_as_one_operation() -> None:
    """That one has no batching rule; the user's own setting is back afterwards."""
    seen: list[bool] = []

    class Asks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(torch.backends.mha.get_fastpath_enabled())
            return super().forward(x)

    model, x = byov.bayesianize(Asks(6, 3), byov.Gaussian()), torch.randn(4, 6)
    byov.predict(model, x, 5, "loop")
    assert set(seen) == {True}
    byov.predict(model, x, 5, "vmap")
    assert seen[5] is False
    assert seen[6:] == [True] * 2  # the passes that it is compared with
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_plain_network_takes_one_pass() -> None:
    net, x, seen = nn.Linear(6, 3), torch.randn(4, 6), []
    net.register_forward_hook(lambda module, args, out: seen.append(module.training))
    for strategy in STRATEGIES:
        found = byov.predict(net, x, 50, strategy, keep=True)
        assert found.samples == 1
        assert found.draws.shape == (1, 4, 3)  # type: ignore[union-attr]
        assert float(found.std.max()) == float(found.mutual_information.max()) == 0.0  # type: ignore[union-attr]
    assert seen == [False] * 3
    assert net.training
    assert_close(found.mean, net(x).softmax(1))
    assert_close(byov.predict(net, list(x.split(3)), 50).mean, net(x).softmax(1))


def test_nothing_is_differentiated(model: byov.BayesianModule) -> None:
    x = torch.randn(5, 6).double().requires_grad_()
    found = byov.predict(model, x, 8)
    assert not found.mean.requires_grad
    assert x.grad is None
    assert torch.is_grad_enabled()
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rule", ["*", "3.*"])
def test_inference_mode_gives_the_same(strategy: Any, rule: str) -> None:
    model, x = byov.bayesianize(mlp(), {rule: byov.Gaussian(-2.0)}), torch.randn(5, 6)
    outside = byov.predict(model, x, 10, strategy, generator=seeded())
    with torch.inference_mode():
        for inputs in (x, x.clone()):
            found = byov.predict(model, inputs, 10, strategy, generator=seeded())
            same(found, outside, 0)
        serving = byov.Serving(model, 10, strategy)
    assert not found.mean.is_inference()
    same(serving(x, seeded()), outside, 0)


def test_a_compiled_or_parallel_model(model: byov.BayesianModule) -> None:
    x = torch.randn(5, 6).double()
    expected = byov.predict(model, x, 10, generator=seeded())
    for wrapped in (torch.compile(model), nn.DataParallel(model)):
        model.cpu()  # where there are GPUs, DataParallel moves it to the first
        same(byov.predict(wrapped, x, 10, generator=seeded()), expected)
    model.net.compile(backend="eager")
    for strategy in STRATEGIES:
        same(byov.predict(model, x, 10, strategy, generator=seeded()), expected)
    with pytest.raises(ValueError, match="bayesianize the whole of it"):
        byov.predict(nn.Sequential(model, nn.ReLU()), x)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rule", ["*", "3.*"])
def test_low_precision_is_averaged_in_float32(strategy: Any, rule: str) -> None:
    model, x = spread(byov.bayesianize(mlp(), {rule: byov.Gaussian(-3.0)})), torch.randn(5, 6)
    with torch.autocast("cpu", torch.bfloat16):
        expected = by_hand(model, x, 10)
        found = byov.predict(model, x, 10, strategy, generator=seeded(), keep=True)
    assert_close(found.draws, expected, rtol=0, atol=0 if strategy == "loop" else 5e-3)
    assert found.mean.dtype == torch.float32
    found = byov.predict(model.bfloat16(), x.bfloat16(), 10, strategy, generator=seeded(), keep=True)
    assert_close(found.draws, by_hand(model, x.bfloat16(), 10), rtol=0, atol=0 if strategy == "loop" else 5e-3)
    assert_close(found.mean.sum(1), torch.ones(5))
