"""A serving gives what `predict` gives, call after call, whatever happens to the weights in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.testing import assert_close

import byov
from byov.posterior import Family
from byov.prediction import engine, graphed, known, reuse
from byov.prediction.captured import Captured
from byov.prediction.draws import Draws
from byov.prediction.graphed import Graphed, Pace
from byov.prediction.reuse import Recording
from byov.prediction.state import modules_of
from byov.prediction.steady import Steady

from .networks import FAMILIES, NETWORKS, mlp, spread

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


class Headed(nn.Module):
    """Features, whatever is done to them, and a head, which alone is random."""

    def __init__(self, between: Callable[[Any, Tensor], Tensor] = lambda net, x: x, width: int = 32) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, width), nn.Tanh()), nn.Linear(width, 3)
        self.between, self.calls, self.cache = between, 0, None

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self, self.body(x)))


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


def headed(between: Any = None) -> byov.BayesianModule:
    torch.manual_seed(0)
    net = Headed() if between is None else Headed(between)
    return byov.bayesianize(net, {byov.output_layer: byov.Gaussian(-1.0)}).double()


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


def test_a_loader_that_calls_the_serving_itself(model: byov.BayesianModule) -> None:
    serving, x = byov.Serving(model, 20), torch.randn(2, 6).double()

    def batches() -> Any:
        for _ in range(3):
            serving([x])
            yield x.repeat(600, 1)  # a window each

    found = serving(batches()).mean.view(3, 600, 2, 3)
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
    clock = iter(float(n) for n in range(10_000))
    steps = iter([0.0, 0.0, 1.0, 1.0, 1.0, 1.1] * 100)  # one draw takes a second, a chunk of them a tenth of it
    monkeypatch.setattr(engine, "_now", lambda device: next(steps))
    monkeypatch.setattr(engine, "perf_counter", lambda: next(clock))
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


class Again:
    """The plain twin of a graph: what was captured is made again at every call, in the contexts of its capture."""

    made = 0

    def __init__(self, make: Callable[[], Any], generator: Generator | None, stream: object) -> None:
        self._make, self.generator = make, generator
        self._autocast = torch.is_autocast_enabled("cpu")
        Again.made += 1

    def __call__(self) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=self._autocast):
            return self._make()

    possible = staticmethod(lambda device, generator: True)


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a GPU on a CPU, graphs included; all but streams."""
    monkeypatch.setattr(Again, "made", 0)
    monkeypatch.setattr(engine, "Captured", Again)
    monkeypatch.setattr(graphed, "Captured", Again)
    monkeypatch.setattr(Steady, "suits", staticmethod(lambda model: True))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)


def test_rows_of_draws_are_captured_for_a_generator_that_comes_again(
    twins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    init, whole = engine.Call.__init__, engine.Call._unmatched

    def aside(self: Any, *args: Any) -> None:
        init(self, *args)
        self._aside = lambda make: make()

    monkeypatch.setattr(engine.Call, "__init__", aside)
    monkeypatch.setattr(engine.Call, "_race", lambda self, running, draws, most: whole(self, running, draws, most))
    monkeypatch.setattr(Draws, "in_rows", property(lambda self: True))
    monkeypatch.setattr(Graphed, "suits", staticmethod(lambda model, modules: False))
    model, x, generator = headed(), torch.randn(5, 6).double(), seeded()
    serving = byov.Serving(model, 9, keep=True)
    calls = [(generator, 0), (generator, 1), (seeded(), 1), (generator, 1), (generator, 1)]
    for call, (which, made) in enumerate(calls):
        found = serving(x, which.manual_seed(call))
        assert Again.made == made
        expected = byov.predict(model, x, 9, "loop", generator=seeded(call), keep=True)
        assert_close(found.draws, expected.draws, rtol=0, atol=1e-12)
        spread(model)

    def fails(self: Again, *args: Any) -> None:
        raise RuntimeError("cannot be captured")

    monkeypatch.setattr(Again, "__init__", fails)
    serving, expected = (
        byov.Serving(model, 9, keep=True),
        byov.predict(model, x, 9, "loop", generator=seeded(), keep=True),
    )
    for _ in range(3):
        assert_close(serving(x, generator.manual_seed(7)).draws, expected.draws, rtol=0, atol=1e-12)


class TestTwinOfAGraph:
    """A draw and its pass, captured: which batches, contexts and networks a kept one serves."""

    @pytest.fixture(autouse=True)
    def everywhere(self, twins: None, monkeypatch: pytest.MonkeyPatch) -> None:
        class Now:
            def __init__(self, model: nn.Module) -> None:
                self.begun = 0

            def begin(self) -> None:
                self.begun += 1

            def host_is_slow(self) -> bool:
                assert self.begun == 2
                return TestTwinOfAGraph.slow

        def capture(cls: Any, draws: Draws, forward: Any) -> Any:
            return forward.one(draws.next()), cls(draws, forward, None, modules_of(forward.model))

        monkeypatch.setattr(engine, "Pace", Now)
        monkeypatch.setattr(TestTwinOfAGraph, "slow", True)
        monkeypatch.setattr(Graphed, "suits", staticmethod(lambda model, modules: True))
        monkeypatch.setattr(Graphed, "capture", classmethod(capture))

    slow = True

    def model(self, between: Any = None) -> byov.BayesianModule:
        torch.manual_seed(0)
        return byov.bayesianize(Headed() if between is None else Headed(between), byov.Gaussian(-1.0))

    def call(self, serving: byov.Serving, x: Tensor, generator: Generator, autocast: bool = False) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = serving(x, generator.manual_seed(7))
            made = Again.made
            expected = byov.predict(serving.model, x, 12, "loop", generator=seeded(), keep=True)
            Again.made = made  # not counting its own
        assert_close(found.draws, expected.draws, rtol=0, atol=1e-5)

    def test_it_follows_the_weights(self) -> None:
        serving, generator = byov.Serving(self.model(), 12, keep=True), seeded()
        for _ in range(4):
            self.call(serving, torch.randn(5, 6), generator)
            assert Again.made == 1
            spread(serving.model)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "order", [[("a", False), ("a", False), ("a", True)], [("a", True), ("b", False), ("a", False), ("a", True)]]
    )
    def test_other_contexts_have_another(self, order: list[tuple[str, bool]]) -> None:
        serving, generator, x = byov.Serving(self.model(), 12, keep=True), seeded(), torch.randn(5, 6)
        for name, autocast in order:
            self.call(serving, x if name == "a" else x[:4], generator, autocast)

    def test_shapes_that_were_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(known, "SHAPES", 2)
        serving, generator, x = byov.Serving(self.model(), 12, keep=True), seeded(), torch.randn(5, 6)
        self.call(serving, x, generator)
        monkeypatch.setattr(TestTwinOfAGraph, "slow", False)
        for size in (2, 3, 4, 5, 5):
            self.call(serving, x[:size], generator)
        assert Again.made == 1

    def test_an_attribute_that_another_batch_has_replaced(self) -> None:
        """A graph reads what was there; so it holds it, and is made anew where the network has something else."""

        def by_shape(net: Headed, x: Tensor) -> Tensor:
            if net.cache is None or len(net.cache) != len(x):  # type: ignore[arg-type]
                net.cache = torch.full((len(x), 1), 2.0)  # type: ignore[assignment]
            return x * net.cache

        model = self.model(by_shape).eval()
        serving, generator, x = byov.Serving(model, 12, keep=True), seeded(), torch.randn(5, 6)
        self.call(serving, x, generator)
        first = model.net.cache  # type: ignore[union-attr]
        self.call(serving, x, generator)
        assert Again.made == 1
        assert serving._known is not None
        graph = serving._known.graph
        assert graph is not None
        assert graph.serves(generator)
        assert any(held is first for held in graph._attributes)
        model.net.cache = torch.full((5, 1), 3.0)  # type: ignore[union-attr,assignment]
        assert not graph.serves(generator)


# CUDA graphs


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The graphs that were made."""
    made: list[object] = []
    whole = Graphed.__init__
    monkeypatch.setattr(Graphed, "__init__", lambda self, *args: made.append(self) or whole(self, *args))
    monkeypatch.setattr(Pace, "host_is_slow", lambda self: True)
    return made


@gpu
@pytest.mark.parametrize("family", [byov.Gaussian(-3.0), byov.EMP(3, spread=0.5), byov.ECMP(3)], ids=str)
@pytest.mark.parametrize("compile", [False, True])
def test_one_graph_serves_many_calls(family: Family, compile: bool, captured: list[object]) -> None:
    model = byov.bayesianize(mlp().cuda(), family).eval()
    serving, generator = byov.Serving(model, 16, keep=True), seeded(1, "cuda")
    if compile:
        model.net.compile()
    for call in range(4):
        x = torch.randn(5, 6, device="cuda")
        state = generator.get_state()
        found = serving(x, generator)
        made, after = len(captured), generator.get_state()
        generator.set_state(state)
        with torch.no_grad():
            draws = []
            for _ in range(16):
                with model.draw(generator):
                    draws.append(model(x).softmax(1))
        assert_close(found.draws, torch.stack(draws), rtol=1e-3, atol=1e-5)
        assert torch.equal(after, generator.get_state())
        assert made == 1, call
        spread(model)


@gpu
def test_a_buffer_in_another_place_has_another_graph(captured: list[object]) -> None:
    model = byov.bayesianize(mlp().cuda(), byov.Gaussian(-3.0)).eval()
    serving, x, generator = byov.Serving(model, 16), torch.randn(5, 6, device="cuda"), seeded(1, "cuda")
    for _ in range(2):
        serving(x, generator)
    model.net[1].register_buffer("running_mean", torch.full((8,), 2.0, device="cuda"))  # type: ignore[operator,index]
    found = serving(x, generator.manual_seed(1))
    assert_close(found.mean, byov.predict(model, x, 16, "vmap", generator=seeded(1, "cuda")).mean, rtol=1e-3, atol=1e-5)
    assert len(captured) == 2


@gpu
def test_another_generator_or_shape_has_a_graph_of_its_own(captured: list[object]) -> None:
    model = byov.bayesianize(mlp().cuda(), byov.Gaussian(-3.0)).eval()
    serving, x = byov.Serving(model, 16, keep=True), torch.randn(6, 6, device="cuda")
    for size, seed, made in ((6, 1, 1), (6, 2, 2), (4, 2, 3), (6, 2, 4)):
        found = serving(x[:size], seeded(seed, "cuda"))
        expected = byov.predict(model, x[:size], 16, "vmap", generator=seeded(seed, "cuda"), keep=True)
        assert_close(found.draws, expected.draws, rtol=1e-3, atol=1e-5)
        assert len(captured) == made
    torch.cuda.manual_seed(0)
    serving(x)
    serving(x)
    assert len(captured) == 5  # the generator of everybody
    for _ in range(3):  # a loader's, which the serving keeps
        serving(list(x.split(2)))
    assert len(captured) == 6


@gpu
def test_a_graph_that_is_kept_lets_others_capture_and_goes_with_its_serving(captured: list[object]) -> None:
    models = [byov.bayesianize(mlp().cuda(), byov.Gaussian(-3.0)).eval() for _ in range(3)]
    x = torch.randn(6, 6, device="cuda")
    servings = [byov.Serving(model, 16) for model in models]
    for _ in range(2):
        for serving in servings:
            serving(x)
    assert len(captured) == 3
    del servings[1]
    captured.clear()
    compiled = torch.compile(mlp().cuda().eval(), mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            compiled(x)
    for serving, model in zip(servings, (models[0], models[2]), strict=True):
        torch.cuda.manual_seed(4)
        found = serving(x)
        torch.cuda.manual_seed(4)
        assert_close(found.mean, byov.predict(model, x, 16, "loop").mean, rtol=1e-3, atol=1e-5)


@gpu
def test_a_kept_graph_works_in_memory_of_its_own(captured: list[object]) -> None:
    """Whoever captures next clears cuBLAS's workspaces and frees what is free: none of it may be the graph's."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 512), *(nn.Linear(512, 512) for _ in range(4)), nn.Linear(512, 3)).cuda()
    model, x = byov.bayesianize(net, byov.Gaussian(-6.0)).eval(), torch.randn(512, 64, device="cuda")
    serving, generator = byov.Serving(model, 16, keep=True), seeded(1, "cuda")
    with torch.autocast("cuda", torch.bfloat16):
        first = serving(x, generator)
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        others = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(64)]
        again = serving(x, generator.manual_seed(1))
    assert len(captured) == 1
    assert_close(again.draws, first.draws, rtol=1e-2, atol=1e-3)
    assert all(bool((other == 7.0).all()) for other in others)


@gpu
@pytest.mark.parametrize("own", [False, True])
def test_a_head_s_draws_follow_its_weights(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    whole = Captured.__init__
    monkeypatch.setattr(Captured, "__init__", lambda self, *args: made.append(self) or whole(self, *args))
    monkeypatch.setattr(engine, "_saves_most", lambda batch: True)  # else it depends on how long a small pass took
    torch.manual_seed(0)
    model = byov.bayesianize(Headed(width=512).cuda(), {byov.output_layer: byov.Gaussian(-3.0)})
    serving, generator = byov.Serving(model, 40, keep=True), seeded(0, "cuda")
    for call in range(5):
        x = torch.randn(500, 6, device="cuda")
        found = serving(x, seeded(call, "cuda") if own else generator.manual_seed(call))
        expected = byov.predict(model, x, 40, "loop", generator=seeded(call, "cuda"), keep=True)
        assert_close(found.draws, expected.draws, rtol=1e-3, atol=1e-5)
        assert found.strategy == "vmap"
        spread(model, 0.01)
    assert len(made) == (not own)
