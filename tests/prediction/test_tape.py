"""Later passes run a tape: it gives what the network would, and a network that would do other things is left alone."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

import byov
from byov.prediction import forward
from byov.prediction.forward import Forward
from byov.prediction.reuse import Diverged, record, replay

from .test_reuse import RANDOM, CalledTwice, Containers, Net, Pair, UnusedPosterior, check, flops, recorded, reused

# A network with a memory of its own


class Alternates(Net):
    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.random((self.fixed if self.passes % 2 else self.other)(x))


class AlternatesInAList(Net):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [0, 1, 2]

    def forward(self, x: Tensor) -> Tensor:
        self.layers.append(self.layers.pop(0))
        return self.random((self.fixed, self.other, self.random)[self.layers[0]](x))


class AlternatesInADict(Net):
    def __init__(self) -> None:
        super().__init__()
        self.state = {"scale": 1.0}

    def forward(self, x: Tensor) -> Tensor:
        self.state["scale"] += 1.0
        return self.random(self.state["scale"] * self.fixed(x))


class Swaps(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.fixed, self.other = self.other, self.fixed
        return self.random(self.fixed(x))


class SetsOnAChild(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.fixed.slope = getattr(self.fixed, "slope", 0.0) + 0.1
        return self.random(F.leaky_relu(self.fixed(x), self.fixed.slope))


class Remembers(Net):
    """What it computed in the pass before is part of the next."""

    last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.fixed(x) if self.last is None else self.other(self.last)
        self.last = h
        return self.random(h)


class RemembersADraw(Net):
    last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.fixed(x)
        self.last = self.random(h if self.last is None else h + self.last)
        return self.last


class Renames(Net):
    """The same values under other names."""

    def __init__(self) -> None:
        super().__init__()
        self.odd = 0.5

    def forward(self, x: Tensor) -> Tensor:
        h = (self.fixed if hasattr(self, "odd") else self.other)(x)
        old, new = ("odd", "even") if hasattr(self, "odd") else ("even", "odd")
        setattr(self, new, getattr(self, old))
        delattr(self, old)
        return self.random(h)


class TurnsAnArray(Net):
    """It stays the same object, but it is not a number."""

    def __init__(self) -> None:
        super().__init__()
        self.order = np.arange(5)

    def forward(self, x: Tensor) -> Tensor:
        self.order += 1
        self.order %= 5
        return self.random(self.fixed(x))[:, self.order]


WITH_MEMORY = [Alternates, AlternatesInAList, AlternatesInADict, Swaps, SetsOnAChild, Remembers, RemembersADraw]
WITH_MEMORY += [Renames, TurnsAnArray]


@pytest.mark.parametrize("net", WITH_MEMORY, ids=lambda n: n.__name__)
def test_networks_that_remember_run_in_full(net: type[Net]) -> None:
    x = torch.randn(4, 5)
    model = check(net(), RANDOM, x, vmap=False)
    assert not reused(model, x)


def test_two_passes_at_most_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(forward, "record", lambda *args: calls.append(args) or record(*args))
    for net, passes in ((Alternates, 2), (CalledTwice, 1)):
        calls.clear()
        check(net(), RANDOM, torch.randn(4, 5), vmap=False)
        assert len(calls) == passes


def test_what_is_set_anew_to_the_same_is_no_memory() -> None:
    class NotesShapes(Net):
        def forward(self, x: Tensor) -> Tensor:
            self.shape, self.scale, self.parts = x.shape, 2 * 0.3, [int(x.shape[0]), "x", (1.5, None)]
            return self.random(self.fixed(x) * self.scale)

    x = torch.randn(4, 5)
    model = check(NotesShapes(), RANDOM, x)
    assert reused(model, x)


def test_a_cache_is_filled_once() -> None:
    """As position embeddings are for the first batch of a size: the second pass is recorded then."""

    class Caches(Net):
        def __init__(self) -> None:
            super().__init__()
            self.grids: dict[int, Tensor] = {}

        def forward(self, x: Tensor) -> Tensor:
            if len(x) not in self.grids:
                self.grids[len(x)] = torch.linspace(0, 1, len(x))[:, None]
            return self.random(self.fixed(x) + self.grids[len(x)])

    x, layer = torch.randn(4, 5), 2 * 4 * 5 * 5
    model = byov.bayesianize(Caches(), RANDOM)
    assert flops(lambda: byov.predict(model, x, 10, "loop")) == 2 * layer + 10 * layer
    assert flops(lambda: byov.predict(model, x, 10, "loop")) == layer + 10 * layer
    check(Caches(), RANDOM, x)


# The tape


class Many(Net):
    """In place, through views, properties and containers, all of it random."""

    def forward(self, x: Tensor) -> Tensor:
        h, drawn = self.fixed(x), self.random(x)
        left, right = drawn.chunk(2, dim=1)  # of three and of two
        right.mul_(2.0)
        drawn[:, 0] = h[:, 1]
        drawn += torch.cat(Pair(left[:, :1], h[:, :4]), dim=1)
        best = drawn.max(dim=1)
        torch.add(drawn, drawn.T.mT, out=drawn)
        drawn.clamp_(max=best.values[:, None])
        return F.relu(drawn, inplace=True).view(-1, 5) @ self.other.weight + best.indices[:, None] * len(drawn)


def test_the_tape_returns_what_the_network_would() -> None:
    x = torch.randn(4, 5)
    for net in (CalledTwice, Many, Containers, UnusedPosterior):
        model = byov.bayesianize(net(), RANDOM)
        _, recording = recorded(model, x)
        assert recording.useful
        for seed in range(3):
            noise = model.noise(Generator().manual_seed(seed))
            with torch.no_grad(), model.draw(noise=noise):
                expected = model(x)
                assert torch.equal(replay(recording, [t for part in noise for t in part.values()]), expected)
    check(Many(), RANDOM, x, vmap=False)


def test_a_later_pass_runs_no_network_code() -> None:
    class Counts(Net):
        def forward(self, x: Tensor) -> Tensor:
            passes.append(1)
            return self.random(self.fixed(x))

    passes: list[int] = []
    byov.predict(byov.bayesianize(Counts(), RANDOM), torch.randn(4, 5), 20, "loop")
    assert len(passes) == 1


def test_a_later_pass_lets_go_of_what_it_needs_no_more() -> None:
    alive: list[weakref.ref[Tensor]] = []

    class Spy(torch.overrides.TorchFunctionMode):
        most = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            alive.extend(weakref.ref(out) for _ in range(isinstance(out, Tensor)))
            self.most = max(self.most, sum(ref() is not None for ref in alive))
            return out

    class Deep(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = self.random(self.fixed(x))
            for _ in range(20):
                h = self.other(h.tanh())
            return h

    model, x = byov.bayesianize(Deep(), RANDOM), torch.randn(4, 5)
    weights = {name: t.detach() for name, t in model.tensors(model.noise()).items()}
    passes = Forward(model.eval(), x, "regression")
    with torch.no_grad():
        passes.one(lambda: weights)
        with Spy() as spy:
            replay(passes.recording, weights.values())
    assert len(alive) == 41
    assert spy.most <= 3


@pytest.mark.parametrize("enabled", [False, True])
def test_autocast_inside_the_network(enabled: bool) -> None:
    """A random call under another autocast state than the pass's own would be repeated under the wrong one."""

    class Casts(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = self.fixed(x).float()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                return self.random(h).float()

    class CastsBefore(Net):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                h = self.fixed(x).float()
            return self.random(h).float()

    x = torch.randn(4, 5)
    for outside in (False, True):
        for net, random_inside in ((Casts, True), (CastsBefore, False)):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=outside):
                model = check(net(), RANDOM, x, vmap=False)
                assert reused(model, x) == (outside == enabled or not random_inside)


def test_pre_hooks_see_every_pass() -> None:
    model, x = byov.bayesianize(CalledTwice(), RANDOM), torch.randn(4, 5)
    seen: list[Any] = []
    model.net.fixed.register_forward_pre_hook(lambda module, args: seen.append(args))
    byov.predict(model, x, 5, "loop")
    assert len(seen) == 15


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_a_write_that_cannot_be_seen() -> None:
    """A scripted function's calls are not shown, but what they wrote to counts how often that happened."""

    @torch.jit.script
    def double(x: Tensor) -> None:
        x.mul_(2.0)

    class WritesUnseen(Net):
        def forward(self, x: Tensor) -> Tensor:
            drawn = self.random(self.fixed(x))
            double(drawn)
            return self.other(drawn)

    x = torch.randn(4, 5)
    model = check(WritesUnseen(), RANDOM, x, vmap=False)
    assert not reused(model, x)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_what_the_network_returns_may_come_from_nowhere() -> None:
    class EndsScripted(Net):
        def __init__(self) -> None:
            super().__init__()
            self.script = torch.jit.script(nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return self.script(self.random(self.fixed(x)))

    x = torch.randn(4, 5)
    model = check(EndsScripted(), RANDOM, x, vmap=False)
    assert not reused(model, x)


class MapsAFixed(Net):
    """A function as an argument: no argument shows what it reads."""

    def forward(self, x: Tensor) -> Tensor:
        drawn = self.random(x)
        return self.fixed(x).apply_(lambda value: value + HIDDEN[-1]) + drawn


class MapsADraw(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.random(self.fixed(x)).map_(x, lambda a, b: a * b)


HIDDEN = [1.0]


@pytest.mark.parametrize("net", [MapsAFixed, MapsADraw])
def test_a_function_as_an_argument(net: type[Net]) -> None:
    x = torch.randn(4, 5)
    model = check(net(), RANDOM, x, vmap=False)
    assert not reused(model, x)


def test_a_tensor_given_other_memory() -> None:
    class SetsData(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = self.fixed(x).detach()
            h.data = self.random(x)
            return self.other(h)

    x = torch.randn(4, 5)
    model = check(SetsData(), RANDOM, x, vmap=False)
    assert not reused(model, x)


class CountsByADraw(Net):
    """How many there are is a shape, which tells something about the values."""

    def forward(self, x: Tensor) -> Tensor:
        many = self.random(x).relu().nonzero().shape[0]
        return self.fixed(x) * many


class TakesByADraw(Net):
    def forward(self, x: Tensor) -> Tensor:
        drawn = self.random(x)
        return self.fixed(x) + drawn[drawn > 0].view(-1, 1).expand(-1, 5).sum(0) * len(drawn[drawn > 0])


@pytest.mark.parametrize("net", [CountsByADraw, TakesByADraw])
def test_a_shape_that_depends_on_the_draw(net: type[Net]) -> None:
    x = torch.randn(4, 5)
    model = check(net(), RANDOM, x, vmap=False)
    _, recording = recorded(model, x)
    noise = [t for part in model.noise(Generator().manual_seed(3)) for t in part.values()]
    with pytest.raises(Diverged):
        replay(recording, noise)


def test_a_network_that_seeds_itself() -> None:
    """It leaves the global stream as it was, which the same calls without its seed would not."""

    class Seeds(Net):
        def forward(self, x: Tensor) -> Tensor:
            h = self.fixed(x)
            with torch.random.fork_rng():
                torch.manual_seed(11)
                return F.dropout(self.random(h), 0.5, training=True)

    x = torch.randn(4, 5)
    model = check(Seeds(), RANDOM, x, vmap=False)
    state = torch.get_rng_state()
    byov.predict(model, x, 5, "loop", generator=Generator().manual_seed(7))
    assert torch.equal(torch.get_rng_state(), state)
