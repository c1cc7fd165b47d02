"""Draws made while the pass before is still running are the same draws, and never written under a pass that reads."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

import byov
from byov.prediction.ahead import Ahead
from byov.prediction.draws import Weights
from byov.prediction.graphed import Pace
from byov.prediction.steady import Steady

from .networks import Tied
from .test_graphed import FAMILIES, Net, by_hand, gpu


class Event:
    """What the current stream had been given when it was recorded."""

    made = 0

    def record(self, stream: Stream) -> None:
        self.number, Event.made = Event.made, Event.made + 1


class Stream:
    """Knows which events it has waited for."""

    def __init__(self, device: object = None) -> None:
        self.waited: list[int] = []

    def wait_event(self, event: Event) -> None:
        self.waited.append(event.number)

    def wait_stream(self, other: Stream) -> None: ...


def test_two_places_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    current = Stream()
    fakes = {"Event": Event, "Stream": Stream, "stream": lambda stream: nullcontext()}
    for name, fake in (fakes | {"current_stream": lambda device: current}).items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(Event, "made", 0)
    model = byov.bayesianize(Tied(), byov.Gaussian(-1.0))
    generators = [Generator().manual_seed(0) for _ in range(2)]
    with torch.no_grad():
        ahead, places = Ahead(model, generators[0], Steady(model)), []
        for _ in range(5):
            weights, expected = Weights(*ahead.next()), model.tensors(model.noise(generators[1]))
            torch.testing.assert_close(weights(), expected)
            places.append(next(iter(weights().values())).data_ptr())
    assert len(set(places)) == 2
    assert places[::2] == places[:1] * 3
    # Event 0 is of the pass before the first of these draws, event k of the one before the k-th: a draw waits for the
    # pass that read its place, and not for the one that may still be running.
    assert ahead._stream.waited == [0, 1, 2, 3, 4]
    assert Event.made == 6
    with torch.no_grad():  # a network has written into the last draw: it is made anew, when that pass is over
        for tensor in weights().values():
            tensor.zero_()
        torch.testing.assert_close(weights(), expected)
    assert ahead._stream.waited[-1] == Event.made - 1 == 6


@gpu
@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("own", [True, False])
def test_a_busy_device_predicts_what_a_loop_by_hand_does(family: Any, own: bool, monkeypatch: Any) -> None:
    made: list[object] = []
    whole = Ahead.__init__
    monkeypatch.setattr(Ahead, "__init__", lambda self, *args: made.append(self) or whole(self, *args))
    monkeypatch.setattr(Pace, "host_is_slow", lambda self: False)
    net = nn.Sequential(nn.Linear(4, 512), *(nn.Linear(512, 512) for _ in range(6)), nn.Linear(512, 3))
    model, x = byov.bayesianize(net.cuda(), family).eval(), torch.randn(20_000, 4, device="cuda")
    torch.cuda.manual_seed(0)
    generator = Generator("cuda").manual_seed(0) if own else None
    found = byov.predict(model, x, 20, generator=generator, keep=True)
    torch.testing.assert_close(found.draws, by_hand(model, x, 20), rtol=1e-3, atol=1e-4)
    assert len(made) == 1


@gpu
def test_weights_that_a_network_has_written_into_are_made_anew(monkeypatch: Any) -> None:
    monkeypatch.setattr(Pace, "host_is_slow", lambda self: False)

    def clip(net: nn.Module, x: Tensor) -> Tensor:
        net.other.weight.clamp_(-0.1, 0.1)
        return x

    model, x = byov.bayesianize(Net(clip).cuda(), byov.Gaussian(-1.0)).eval(), torch.randn(24, 4, device="cuda")
    batches = x.split(8)
    found = byov.predict(model, batches, 12, generator=Generator("cuda").manual_seed(0), keep=True)
    torch.testing.assert_close(found.draws, by_hand(model, x, 12).cpu(), rtol=1e-3, atol=1e-5)
