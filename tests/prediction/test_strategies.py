"""Every way to go through the draws gives the numbers of a loop written by hand."""

import weakref
from typing import Any

import pytest
import torch
from scipy import stats
from small_networks import NETWORKS, Recurrent, mlp, seeded
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import byov
from byov.posterior import Family
from byov.prediction import head, strategies
from byov.prediction.result import BatchState

from .networks import FAMILIES, KINDS, STRATEGIES, agree, by_hand, same, shared, snapshot, spread

COVERS: dict[str, Any] = {"all": None, "output": byov.output_layer, "norms": byov.norm_layers}
MIXED = {"0.weight": byov.Gaussian(-4.0), "0.*": byov.EMP(3), byov.output_layer: byov.Dropout(0.3)}


@pytest.mark.parametrize(
    ("kind", "cover"), [(kind, cover) for kind in KINDS for cover in (COVERS if kind in NETWORKS else ["all"])]
)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: type(f).__name__)
def test_every_family_on_every_network(family: Family, kind: str, cover: str) -> None:
    """The numbers are those of a loop by hand; the network is afterwards as it was, module by module."""
    make, batch = KINDS[kind]
    model, x = byov.bayesianize(make(), family if cover == "all" else {COVERS[cover]: family}), batch()
    model = spread(model).double()  # a sum's order does not show in float64
    x = x.double() if x.is_floating_point() else x
    draws = by_hand(model, x, 6)
    assert float(draws.std(0).max()) > 1e-6
    total = stats.entropy(draws.mean(0).numpy(), axis=1)
    aleatoric = stats.entropy(draws.numpy(), axis=2).mean(0)
    batched = ("loop",) if kind == "lstm" else ("loop", "vmap")  # torch has no batching rule for an LSTM
    ways = {strategy: byov.Serving(model, 6, strategy, keep=True) for strategy in batched}
    ways["head" if cover == "output" and kind != "tied" else "loop"] = serving = byov.Serving(model, 6, keep=True)
    first = next(module for module in model.train().net.modules() if module is not model.net)
    first.eval()  # as frozen statistics are, in a model that trains
    before = snapshot(model)
    for used, way in [*ways.items(), (None, serving)]:
        found = way(x, seeded())
        assert_close(found.draws, draws, rtol=0, atol=1e-12)
        assert_close(found.mean, draws.mean(0), rtol=0, atol=1e-12)
        assert_close(found.std, draws.std(0, correction=0), rtol=0, atol=1e-9)
        assert_close(found.entropy.numpy(), total, rtol=0, atol=1e-9)
        assert_close(found.expected_entropy.numpy(), aleatoric, rtol=0, atol=1e-9)
        assert_close(found.mutual_information.numpy(), total - aleatoric, rtol=0, atol=1e-9)
        assert len(found) == len(x)
        assert found.samples == 6
        assert used in (None, found.strategy)
        assert snapshot(model) == before
        assert (model.training, first.training) == (True, False)


@pytest.mark.parametrize("rules", [{"*": byov.Gaussian(-2.0)}, {"3.*": byov.Gaussian(-2.0)}, MIXED], ids=str)
def test_draws_are_those_of_sample(strategy: Any, rules: Any) -> None:
    """In the plain network, with the weights that `model.sample` gives for the same generator."""
    torch.manual_seed(2)
    model, x = spread(byov.bayesianize(shared(), rules)), torch.randn(4, 6)
    drawn, net = model.sample(5, seeded()), model.point()
    expected = [functional_call(net, {n: d[i] for n, d in drawn.items()}, (x,)).softmax(1) for i in range(5)]
    found = byov.predict(model, x, 5, strategy, generator=seeded(), keep=True)
    assert_close(found.draws, torch.stack(expected).detach())


def test_the_generator_moves_on_by_the_draws(model: byov.BayesianModule, strategy: Any) -> None:
    """So that two calls of few draws have those of one call of many."""
    x, generator = torch.randn(5, 6).double(), seeded()
    parts = [byov.predict(model, x, n, strategy, generator=generator, keep=True).draws for n in (1, 4, 2)]
    whole = byov.predict(model, x, 7, strategy, generator=seeded(), keep=True).draws
    assert_close(torch.cat(parts), whole, rtol=0, atol=1e-12)


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
    """They are gone through in chunks, which do not show in the numbers."""
    model, x = spread(byov.bayesianize(mlp(), {rule: byov.Gaussian(-2.0)})).double(), torch.randn(5, 6).double()
    whole = byov.predict(model, x, 41, strategy, generator=seeded(), keep=True)
    monkeypatch.setattr(strategies, "MAX_OUTPUT_ELEMENTS", 4 * 5 * 3)
    monkeypatch.setitem(strategies.CHUNK, "cpu", 4 * 107)
    monkeypatch.setattr(head, "CHUNK", 4 * 24)
    sizes, take = [], BatchState.take
    monkeypatch.setattr(BatchState, "take", lambda self, out: sizes.append(len(out)) or take(self, out))
    found = byov.predict(model, x, 41, strategy, generator=seeded(), keep=True)
    assert max(sizes) == 4
    same(found, whole)
    assert_close(found.draws, whole.draws, rtol=0, atol=1e-12)

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
        assert agree(model, x, strategy, atol=0).strategy == "loop"
    recurrent = byov.bayesianize(Recurrent(), {"lstm.*": byov.Gaussian(0.0)})  # torch has no rule for it
    for refused in (model, recurrent):
        with pytest.raises(RuntimeError, match=r"^torch.vmap cannot batch this network .*: use strategy='loop'\.$"):
            byov.predict(refused, x, 10, "vmap")


def test_batched_attention_is_not_run_as_one_operation() -> None:
    """That one has no batching rule; the user's own setting is back afterwards."""
    enabled = torch.backends.mha.get_fastpath_enabled
    seen: list[bool] = []
    model = byov.bayesianize(mlp(), byov.Gaussian())
    model.net[0].register_forward_hook(lambda *_: seen.append(enabled()))
    byov.predict(model, torch.randn(4, 6), 5, "vmap")
    assert (seen[0], enabled()) == (False, True)


def test_a_plain_network_takes_one_pass() -> None:
    net, x, seen = nn.Linear(6, 3), torch.randn(4, 6), []
    net.register_forward_hook(lambda module, args, out: seen.append(module.training))
    for strategy in STRATEGIES:
        found = byov.predict(net, x, 50, strategy, keep=True)
        assert found.samples == 1
        assert found.draws.shape == (1, 4, 3)
        assert float(found.std.max()) == float(found.mutual_information.max()) == 0.0
    assert seen == [False] * 3
    assert net.training
    assert_close(found.mean, net(x).softmax(1))
    assert_close(byov.predict(net, list(x.split(3)), 50).mean, net(x).softmax(1))
    serving = byov.Serving(net, task="regression", precision=4.0)
    for _ in range(2):
        found = serving(x)
        assert_close(found.mean, net(x))
        assert_close(found.std, torch.full((4, 3), 0.5))
        net.weight.data += 1.0


def test_nothing_is_differentiated(model: byov.BayesianModule) -> None:
    x = torch.randn(5, 6).double().requires_grad_()
    found = byov.predict(model, x, 8)
    assert not found.mean.requires_grad
    assert x.grad is None
    assert torch.is_grad_enabled()
    assert all(p.requires_grad for p in model.parameters())


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
