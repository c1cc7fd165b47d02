"""Draws as a CUDA graph predict what a loop by hand does; and networks that cannot have one are left alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

import byov
from byov.prediction import graphed
from byov.prediction.graphed import ENOUGH, Graphed, Pace
from byov.prediction.state import modules_of

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
FAMILIES = [byov.Gaussian(-3.0), byov.Dropout(0.3), byov.DropConnect(0.3), byov.EMP(3, spread=0.5), byov.ECMP(3)]
UNEVEN = byov.EMP(3, probs=(0.5, 0.3, 0.2), spread=0.5)
"""Its draws wait for the device: no graph."""


class Net(nn.Module):
    """Two layers, and between them whatever is done to the activations."""

    def __init__(self, between: Callable[[nn.Module, Tensor], Tensor] = lambda net, x: x) -> None:
        super().__init__()
        self.one, self.other, self.between, self.calls = nn.Linear(4, 8), nn.Linear(8, 3), between, 0

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.between(self, torch.relu(self.one(x))))


def count(net: nn.Module, x: Tensor) -> Tensor:
    net.calls += 1
    return x * net.calls


def steered(net: nn.Module, x: Tensor) -> Tensor:
    return x if x.mean().item() > 0.5 else -x


def by_hand(model: byov.BayesianModule, x: Tensor, samples: int, seed: int = 0) -> Tensor:
    generator, probs = Generator("cuda").manual_seed(seed), []
    with torch.no_grad():
        for _ in range(samples):
            with model.draw(generator):
                probs.append(model(x).softmax(1))
    return torch.stack(probs)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The graphs that were made."""
    made: list[object] = []
    whole = Graphed.__init__
    monkeypatch.setattr(Graphed, "__init__", lambda self, *args: made.append(self) or whole(self, *args))
    monkeypatch.setattr(Pace, "host_is_slow", lambda self: True)  # else it depends on what else the device has to do
    return made


def test_it_is_for_gpus() -> None:
    model, net = byov.bayesianize(Net(), byov.Gaussian()), Net()
    assert not Graphed.suits(model, modules_of(model.net))
    assert not Graphed.suits(net, modules_of(net))


@pytest.mark.parametrize(("host", "device"), [(4.0, 1.0), (4.0, 3.0), (3.0, 4.0), (1.0, 4.0)])
def test_who_is_slow(host: float, device: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that launches a draw in so many milliseconds, and a device that runs it in so many, step by step."""
    now, busy = 0.0, 0.0  # the host's clock, and when the device is done with what it has been given

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = max(now, busy)

        def query(self) -> bool:
            return self.at <= now

        def elapsed_time(self, end: Event) -> float:
            return end.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(graphed, "perf_counter", lambda: now / 1000)
    pace = Pace(Net())
    for _ in range(2):
        pace.begin()
        busy = max(busy, now + 0.1) + device
        now += host
    assert pace.host_is_slow() == (host > device)


@gpu
@pytest.mark.parametrize("family", [*FAMILIES, UNEVEN], ids=str)
@pytest.mark.parametrize("samples", [2, ENOUGH, 40])
def test_predictions_are_those_of_a_loop_by_hand(family: Any, samples: int, captured: list[object]) -> None:
    model, x = byov.bayesianize(Net().cuda(), family).eval(), torch.randn(6, 4, device="cuda")
    found = byov.predict(model, x, samples, generator=Generator("cuda").manual_seed(0), keep=True)
    torch.testing.assert_close(found.draws, by_hand(model, x, samples), rtol=1e-3, atol=1e-5)
    assert len(captured) == (samples >= ENOUGH and family is not UNEVEN)
    with torch.no_grad():  # and the generator of everybody goes on as it would have
        torch.manual_seed(0)
        byov.predict(model, x, samples)
        after = torch.randn(3, device="cuda")
        torch.manual_seed(0)
        for _ in range(samples):
            model.noise()
        assert torch.equal(after, torch.randn(3, device="cuda"))


@gpu
@pytest.mark.parametrize("keep", [False, True])
def test_a_loader_shares_one_graph_and_a_last_small_batch_has_none(keep: bool, captured: list[object]) -> None:
    model, x = byov.bayesianize(Net().cuda(), byov.Gaussian(-2.0)).eval(), torch.randn(20, 4)
    found = byov.predict(model, x.split(8), 12, generator=Generator("cuda").manual_seed(0), keep=keep)
    draws = by_hand(model, x.cuda(), 12).cpu()
    torch.testing.assert_close(found.mean, draws.mean(0), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found.std, draws.std(0, correction=0), rtol=1e-2, atol=1e-5)
    if keep:
        torch.testing.assert_close(found.draws, draws, rtol=1e-3, atol=1e-5)
    assert len(captured) == 1


@gpu
@pytest.mark.parametrize("between", [count, steered], ids=lambda f: f.__name__)
def test_networks_that_it_leaves_alone(between: Any, captured: list[object]) -> None:
    x = torch.randn(6, 4, device="cuda")
    model = byov.bayesianize(Net(between).cuda(), byov.Gaussian(-2.0)).eval()
    found = byov.predict(model, x, 12, generator=Generator("cuda").manual_seed(0), keep=True)
    model.net.calls = 0
    torch.testing.assert_close(found.draws, by_hand(model, x, 12), rtol=1e-3, atol=1e-5)
    assert not captured
    assert torch.cuda.get_sync_debug_mode() == 0
    hooked = byov.bayesianize(Net().cuda(), byov.Gaussian(-2.0)).eval()
    seen: list[object] = []
    hooked.net.one.register_forward_hook(lambda *args: seen.append(args))
    byov.predict(hooked, x, 12, "loop")
    assert len(seen) == 12
    assert not captured


@gpu
def test_a_network_s_own_noise_is_new_in_every_pass() -> None:
    def noisy(net: nn.Module, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)

    model = byov.bayesianize(Net(noisy).cuda(), byov.Gaussian(-20.0)).eval()
    found = byov.predict(model, torch.randn(6, 4, device="cuda"), 20, keep=True)
    assert len({tuple(draw.flatten().tolist()) for draw in found.draws}) == 20


@gpu
def test_a_compiled_network_has_a_graph_too(captured: list[object]) -> None:
    model, x = byov.bayesianize(Net().cuda(), byov.Gaussian(-2.0)).eval(), torch.randn(6, 4, device="cuda")
    expected = by_hand(model, x, 12)
    model.net.compile()
    found = byov.predict(model, x, 12, generator=Generator("cuda").manual_seed(0), keep=True)
    torch.testing.assert_close(found.draws, expected, rtol=1e-3, atol=1e-5)
    assert len(captured) == 1
    nested = byov.bayesianize(Net().cuda(), byov.Gaussian(-2.0)).eval()
    expected = by_hand(nested, x, 12)
    nested.net.compile(mode="reduce-overhead")  # which is a graph already
    found = byov.predict(nested, x, 12, generator=Generator("cuda").manual_seed(0), keep=True)
    torch.testing.assert_close(found.draws, expected, rtol=1e-3, atol=1e-5)
    assert len(captured) == 1


@gpu
@pytest.mark.parametrize("own", [True, False])
def test_a_device_that_is_slow_has_no_graph(own: bool, captured: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "host_is_slow", lambda self: False)
    net = nn.Sequential(nn.Linear(4, 512), *(nn.Linear(512, 512) for _ in range(6)), nn.Linear(512, 3))
    model, x = byov.bayesianize(net.cuda(), byov.Gaussian(-3.0)).eval(), torch.randn(20_000, 4, device="cuda")
    torch.cuda.manual_seed(0)
    generator = Generator("cuda").manual_seed(0) if own else None
    found, expected = byov.predict(model, x, 21, generator=generator, keep=True), by_hand(model, x, 21)
    torch.testing.assert_close(found.draws, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.mean, expected.mean(0), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.std, expected.std(0, correction=0), rtol=1e-2, atol=1e-4)
    assert not captured


@gpu
def test_another_thread_has_no_graph(captured: list[object]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    model, x = byov.bayesianize(Net().cuda(), byov.Gaussian(-2.0)).eval(), torch.randn(6, 4, device="cuda")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(byov.predict, model, x, 12).result()
    assert not captured
