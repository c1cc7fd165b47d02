"""A serving gives what `predict` gives, call after call, whatever happens to the weights in between."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.testing import assert_close

import byov
from byov.posterior import Family
from byov.prediction import engine, known, reuse
from byov.prediction.reuse import Recording
from byov.prediction.steady import Steady

from .networks import FAMILIES, NETWORKS, Headed, headed, mlp, spread

COVERS: dict[str, Any] = {"all": None, "output": byov.output_layer, "norms": byov.norm_layers}
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def seeded(seed: int = 7, device: str = "cpu") -> Generator:
    return Generator(device).manual_seed(seed)


def agree(serving: byov.Serving, x: Any, samples: int, strategy: Any = "auto", seed: int = 7) -> byov.Prediction:
    """One call, which is compared with `predict`'s draws; the serving keeps its own."""
    found = serving(x, seeded(seed))
    expected = byov.predict(serving.model, x, samples, strategy, generator=seeded(seed), keep=True)
    assert found.draws is not None
    assert_close(found.draws, expected.draws, rtol=0, atol=1e-12)
    assert_close(found.std, expected.std, rtol=0, atol=1e-9)
    return found


@pytest.mark.parametrize("cover", COVERS)
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: type(f).__name__)
def test_every_family_on_every_network_while_it_learns(family: Family, kind: str, cover: str) -> None:
    make, batch = NETWORKS[kind]
    model = byov.bayesianize(make(), family if cover == "all" else {COVERS[cover]: family}).double()
    serving, last = byov.Serving(model, 6, keep=True), None
    for call in range(4):
        x = batch()
        found = agree(serving, x.double() if x.is_floating_point() else x, 6, seed=call)
        assert last is None or float((found.draws - last).abs().max()) > 1e-9  # type: ignore[operator]
        last = found.draws
        spread(model)  # in place, as an optimizer does


@pytest.fixture
def model() -> byov.BayesianModule:
    return spread(byov.bayesianize(mlp(), byov.Gaussian(-4.0))).double()


def test_batches_of_several_shapes_in_turns(model: byov.BayesianModule) -> None:
    serving = byov.Serving(model, 12, keep=True)
    for size in (5, 3, 5, 1, 3):
        x = torch.randn(size, 6).double()
        agree(serving, x, 12)
        agree(serving, {"input": x}, 12)
        agree(serving, list(x.split(2)), 12)


def test_more_shapes_than_are_remembered(model: byov.BayesianModule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "SHAPES", 2)
    serving = byov.Serving(model, 5, keep=True)
    for size in (1, 2, 3, 1, 2, 3):
        agree(serving, torch.randn(size, 6).double(), 5)
        assert serving._known is not None
        assert len(serving._known._looks) <= 2


def test_other_tensors_in_the_place_of_its_own(model: byov.BayesianModule) -> None:
    """Weights may be put elsewhere, as by `model.to`, by `assign=True` or by hand."""
    serving, x = byov.Serving(model, 5, keep=True), torch.randn(4, 6).double()
    agree(serving, x, 5)
    model.load_state_dict({k: v.clone() + 0.1 if v.is_floating_point() else v for k, v in model.state_dict().items()})
    agree(serving, x, 5)
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    agree(serving, x, 5)
    model.net[1].register_buffer("running_mean", torch.ones(8).double())  # type: ignore[operator,index]
    agree(serving, x, 5)
    model.float()
    found = serving(x.float(), seeded())
    assert_close(found.draws, byov.predict(model, x.float(), 5, generator=seeded(), keep=True).draws)
    assert found.mean.dtype == torch.float32


@pytest.mark.parametrize("strategy", ["loop", "vmap", "auto"])
def test_the_global_stream_decides_without_a_generator(model: byov.BayesianModule, strategy: Any) -> None:
    serving, x = byov.Serving(model, 8, strategy, keep=True), torch.randn(5, 6).double()
    for data in (x, [x[:2], x[2:]], x, [x[:2], x[2:]]):
        torch.manual_seed(3)
        found = [serving(data), serving(data)]
        torch.manual_seed(3)
        expected = [byov.predict(model, data, 8, strategy, keep=True) for _ in range(2)]
        for one, other in zip(found, expected, strict=True):
            assert_close(one.draws, other.draws, rtol=0, atol=1e-12)
        assert float((found[0].draws - found[1].draws).abs().max()) > 1e-6  # type: ignore[operator]


def test_a_tolerance(model: byov.BayesianModule) -> None:
    serving, x = byov.Serving(model, 200, tolerance=0.02), torch.randn(9, 6).double()
    for _ in range(3):
        found = serving(x, seeded())
        expected = byov.predict(model, x, 200, tolerance=0.02, generator=seeded())
        assert torch.equal(torch.as_tensor(found.samples), torch.as_tensor(expected.samples))
        assert_close(found.mean, expected.mean)


def test_a_regression_and_a_plain_network() -> None:
    net, x = nn.Linear(6, 2), torch.randn(5, 6)
    serving = byov.Serving(net, task="regression", precision=4.0)
    for _ in range(3):
        found = serving(x)
        assert_close(found.mean, net(x))
        assert_close(found.std, torch.full((5, 2), 0.5))
        with torch.no_grad():
            net.weight.add_(1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"samples": 0}, "at least one draw"), ({"strategy": "fast"}, "A strategy is"), ({"tolerance": -1}, "tolerance")],
)
def test_bad_settings_are_named_at_once(model: byov.BayesianModule, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        byov.Serving(model, **arguments)
    with pytest.raises(TypeError, match="takes a BayesianModule"):
        byov.Serving(3)  # type: ignore[arg-type]


def test_a_failed_call_leaves_nothing_behind(model: byov.BayesianModule) -> None:
    serving, x = byov.Serving(model, 5, keep=True), torch.randn(4, 6).double()
    model.train()
    agree(serving, x, 5)
    for bad in (torch.randn(4, 7).double(), torch.full((4, 6), float("nan")).double(), [], 3):
        with pytest.raises((RuntimeError, ValueError, TypeError)):
            serving(bad)  # type: ignore[arg-type]
        assert model.training
        assert model.net.training
        agree(serving, x, 5)


# What a call need not look for again


def count(net: Headed, x: Tensor) -> Tensor:
    net.calls += 1
    return x * net.calls


def cached(net: Headed, x: Tensor) -> Tensor:
    """Fills a cache when it is empty, and is another network then."""
    if net.cache is None:
        net.cache = 2.0
        return x
    return x * net.cache


def skips(net: Headed, x: Tensor) -> Tensor:
    """What was made before the first drawn weight meets it later."""
    doubled = 2 * x
    return x * net.head.weight.sum() + doubled


def noisy(net: Headed, x: Tensor) -> Tensor:
    return x + torch.rand(1)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every look at the attributes of a network's modules, around a pass of its own."""
    seen: list[int] = []
    whole = reuse.attributes_of

    def attributes_of(modules: list[nn.Module]) -> list[Any]:
        if any(isinstance(module, Headed) for module in modules):
            seen.append(len(modules))
        return whole(modules)

    monkeypatch.setattr(reuse, "attributes_of", attributes_of)
    return seen


def test_a_sound_pass_is_looked_at_once(looks: list[int]) -> None:
    model, x = headed(), torch.randn(5, 6).double()
    serving = byov.Serving(model, 6, keep=True)
    for call in range(3):
        serving(x, seeded(call))
        assert len(looks) == 2  # before the first pass and after it
    serving(x[:3], seeded())
    assert len(looks) == 4
    byov.predict(model, x, 6)
    assert len(looks) == 6


@pytest.mark.parametrize(("between", "sooner"), [(skips, 3), (cached, 2)], ids=["skips", "cached"])
def test_a_pass_that_settles_is_trusted_when_a_first_one_is_sound(between: Any, sooner: int, looks: list[int]) -> None:
    model, x = headed(between), torch.randn(5, 6).double()
    serving = byov.Serving(model, 6, "loop", keep=True)
    before: list[int] = []
    for call in range(5):
        twin = headed(between)
        twin.net.cache = model.net.cache  # type: ignore[union-attr]
        found = serving(x, seeded(call))
        before.append(len(looks))
        assert_close(found.draws, byov.predict(twin, x, 6, "loop", generator=seeded(call), keep=True).draws)
        looks[:] = looks[: before[-1]]
    assert before[sooner:] == [before[sooner - 1]] * (5 - sooner)
    assert before[0] > 0


@pytest.mark.parametrize("between", [count, noisy], ids=["count", "noisy"])
def test_a_pass_that_is_not_sound_is_never_trusted(between: Any, looks: list[int]) -> None:
    model, x = headed(between), torch.randn(5, 6).double()
    serving, twin = byov.Serving(model, 6, "loop", keep=True), headed(between)
    for call in range(3):
        looks.clear()
        torch.manual_seed(call)
        found = serving(x, seeded(call))
        assert len(looks) >= 2
        torch.manual_seed(call)
        assert_close(found.draws, byov.predict(twin, x, 6, "loop", generator=seeded(call), keep=True).draws)


def moody(net: Headed, x: Tensor) -> Tensor:
    """Draws random numbers of its own, for some inputs."""
    return x + torch.rand(1) if float(x.sum()) > 0 else x


def writes(net: Headed, x: Tensor) -> Tensor:
    """Counts in a buffer, for some inputs."""
    if float(x.sum()) > 0:
        net.seen.add_(1.0)  # type: ignore[operator]
    return x * net.seen  # type: ignore[operator]


@pytest.mark.parametrize("between", [moody, writes], ids=["moody", "writes"])
def test_a_pass_that_is_not_sound_for_some_inputs(between: Any) -> None:
    models = [headed(between), headed(between)]
    for model in models:
        model.net.register_buffer("seen", torch.ones(1))  # type: ignore[operator]
    model, twin = models
    serving, x = byov.Serving(model, 6, "loop", keep=True), torch.randn(5, 6).double()
    signs = model.net.body(x).sum(), model.net.body(-x).sum()  # type: ignore[operator]
    assert signs[0] * signs[1] < 0
    for call, batch in enumerate([-x, x, -x, x, x] if signs[0] > 0 else [x, -x, x, -x, -x]):
        torch.manual_seed(call)
        found = serving(batch, seeded(call))
        torch.manual_seed(call)
        expected = byov.predict(twin, batch, 6, "loop", generator=seeded(call), keep=True)
        assert_close(found.draws, expected.draws, rtol=0, atol=1e-6)


def test_other_points_are_trusted_again(looks: list[int]) -> None:
    """Parameters without a posterior that were exchanged: the numbers are right at once, and the checks end again."""

    class Middle(Headed):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x)) @ self.after  # type: ignore[operator]

    torch.manual_seed(0)
    net = Middle()
    net.after = nn.Parameter(torch.randn(3, 3))
    model, x = byov.bayesianize(net, {"head.*": byov.Gaussian(-1.0)}).double(), torch.randn(5, 6).double()
    serving = byov.Serving(model, 6, keep=True)
    for _ in range(3):
        agree(serving, x, 6)
    model.net.after = nn.Parameter(torch.randn(3, 3).double())
    for _ in range(3):
        agree(serving, x, 6)
    looks.clear()
    serving(x)
    assert not looks
    assert serving._known is not None
    (look,) = serving._known._looks.values()
    assert any(tensor is model.net.after for tensor in look.given or ())


def test_a_loader_that_calls_the_serving_itself(model: byov.BayesianModule) -> None:
    serving, x = byov.Serving(model, 20), torch.randn(2, 6).double()
    serving([x])  # from here on it has a generator

    def batches() -> Any:
        for _ in range(3):
            serving([x])
            yield x.repeat(200, 1)  # two in a window, then one

    found = serving(batches()).mean.view(3, 200, 2, 3)
    assert_close(found, found[:1, :1].expand_as(found))


def test_modules_that_the_first_pass_adds() -> None:
    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "late"):
                self.late = nn.Dropout(0.5)
            return self.head(self.late(x))

    model = byov.bayesianize(Grows(), byov.Gaussian())
    serving = byov.Serving(model, 4)
    for _ in range(3):
        model.train()
        serving(torch.randn(5, 6))
        assert model.net.late.training  # type: ignore[union-attr]


def test_a_hook_sees_every_pass() -> None:
    model, x, seen = headed(), torch.randn(5, 6).double(), []
    model.net.body.register_forward_hook(lambda *args: seen.append(1))  # type: ignore[union-attr]
    serving = byov.Serving(model, 6, "loop")
    for call in range(3):
        serving(x)
        assert len(seen) == 6 * (call + 1)


def test_the_strategies_race_once(model: byov.BayesianModule, monkeypatch: pytest.MonkeyPatch) -> None:
    races: list[str] = []
    whole = engine.Call._race
    monkeypatch.setattr(engine.Call, "_race", lambda self, *args: races.append(self.strategy) or whole(self, *args))
    serving = byov.Serving(model, 20, keep=True)
    x = torch.randn(5, 6).double()
    first = agree(serving, x, 20)
    again = [agree(serving, x, 20) for _ in range(2)]
    assert len(races) == 1 + 3  # and three of `predict`, which knows nothing
    assert {found.strategy for found in again} == {first.strategy}
    serving(x[:2])
    assert len(races) == 5


class Reads(nn.Linear):
    """Cannot be batched, on batches of another size than five."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out if len(x) == 5 else out * (1.0 if out.detach().abs().sum().item() > 0 else 2.0)


def test_a_winner_that_cannot_batch_another_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.0, 0.1, 0.1, 0.1, 0.11])  # one draw takes a tenth of a second, a chunk of them a tenth of it
    monkeypatch.setattr(engine, "_now", lambda device: next(clock))
    torch.manual_seed(0)
    model = byov.bayesianize(nn.Sequential(nn.Linear(6, 8), Reads(8, 3)), byov.Gaussian(-1.0)).double()
    serving, x = byov.Serving(model, 20, keep=True), torch.randn(9, 6).double()
    assert_close(
        serving(x[:5], seeded()).draws, byov.predict(model, x[:5], 20, "loop", generator=seeded(), keep=True).draws
    )
    found = serving([x[:5], x[5:]], seeded())
    assert_close(found.draws, byov.predict(model, x, 20, "loop", generator=seeded(), keep=True).draws)


def test_as_on_a_gpu_draws_follow_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """One place for every draw, σ kept there, and batched draws without a race: the plain twin of a GPU's way."""
    whole = engine.Call._unmatched
    monkeypatch.setattr(engine.Call, "_race", lambda self, running, draws, most: whole(self, running, draws, most))
    monkeypatch.setattr(Steady, "suits", staticmethod(lambda model: True))
    monkeypatch.setattr(Recording, "useful", property(lambda self: self.sound))
    for rules in (byov.Gaussian(-1.0), {byov.output_layer: byov.Gaussian(-1.0)}, byov.EMP(3, spread=0.5)):
        for strategy in ("auto", "loop", "vmap"):
            torch.manual_seed(0)
            model, x = byov.bayesianize(Headed(), rules).double(), torch.randn(5, 6).double()
            serving = byov.Serving(model, 9, strategy, keep=True)  # type: ignore[arg-type]
            for call in range(3):
                agree(serving, x, 9, strategy, call)
                spread(model)
            state = {k: 2 * v if v.is_floating_point() else v for k, v in model.state_dict().items()}
            model.load_state_dict(state, assign=True)
            agree(serving, x, 9, strategy)
