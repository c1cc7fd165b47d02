"""What a serving keeps as CUDA graphs predicts what `predict` does: on a GPU, and by plain twins on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.testing import assert_close

import byov
from byov.posterior import Family
from byov.prediction import engine, graphed, known
from byov.prediction.captured import Captured
from byov.prediction.draws import Draws
from byov.prediction.graphed import Graphed, Pace
from byov.prediction.state import modules_of
from byov.prediction.steady import Steady

from .networks import Headed, headed, mlp, spread

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def seeded(seed: int = 7, device: str = "cpu") -> Generator:
    return Generator(device).manual_seed(seed)


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
