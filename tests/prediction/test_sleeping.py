"""A pass that is watched from its first drawn weight on has the numbers of passes in full, whoever reads the weight."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

import byov
from byov.prediction import forward
from byov.prediction.reuse import Recording, record

from .networks import by_hand

HEAD = {"head.*": byov.Gaussian(-1.0)}


def watching() -> int:
    """How many recorders see the calls made now."""
    return torch._C._len_torch_function_stack()


class Net(nn.Module):
    """Features, then a head, which alone is random."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(5, 6), nn.Tanh()), nn.Linear(6, 3)
        self.seen: list[int] = []

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class ReadsAhead(Net):
    """The features depend on the head's weights, which are read without calling the head."""

    def features(self, x: Tensor) -> Tensor:
        return self.body(x) * self.head.weight.square().mean()


class ReadsABias(Net):
    def features(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.body[0].weight, self.head.bias.repeat(2))


class ReadsData(Net):
    """A property that is a tensor."""

    def features(self, x: Tensor) -> Tensor:
        return self.body(x) * self.head.weight.data.mean()


class Skips(Net):
    """What was made before the head is met again after it."""

    def forward(self, x: Tensor) -> Tensor:
        before = self.features(x)
        return self.head(before.abs()) + before[:, :3]


class AsksTheShape(Net):
    def features(self, x: Tensor) -> Tensor:
        assert self.head.weight.shape == (3, 6)
        assert self.head.weight.dtype == torch.float32
        assert self.head.weight.dim() == 2
        return self.body(x)


class ReturnsItsWeights(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.head.weight[: len(x)]


class Steers(Net):
    def features(self, x: Tensor) -> Tensor:
        return self.body(x) * (2.0 if float(self.head.weight.sum()) > 0 else 1.0)


class OnADevice(Net):
    """A context that is a mode of its own comes between the recorder's beginning and its end."""

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x)
        with torch.device("cpu"):
            out = self.head(features)
        return out + torch.ones(3)


class Keeps(Net):
    """The weight of one pass is used in the next."""

    kept: Any = None

    def forward(self, x: Tensor) -> Tensor:
        out = self.head(self.features(x))
        out = out if self.kept is None else out + self.kept.sum()
        self.kept = self.head.weight
        return out


class OwnNoise(Net):
    def __init__(self) -> None:
        super().__init__()
        self.noise = Generator().manual_seed(0)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x) + torch.randn(len(x), 6, generator=self.noise)


NETS = [Net, ReadsAhead, ReadsABias, ReadsData, Skips, AsksTheShape, ReturnsItsWeights, Steers, OnADevice]


@pytest.mark.parametrize(
    ("net", "strategy"),
    [*((net, strategy) for net in NETS for strategy in ("loop", "auto")), (Keeps, "loop")],  # vmap has no memory
)
def test_the_numbers_are_those_of_passes_in_full(net: type[Net], strategy: Any) -> None:
    torch.manual_seed(1)
    fresh, x = net(), torch.randn(3, 5)
    expected = by_hand(byov.bayesianize(fresh, HEAD).eval(), x, 9, seed=3)
    model = byov.bayesianize(fresh, HEAD)
    found = byov.predict(model, x, 9, strategy, generator=Generator().manual_seed(3), keep=True)
    torch.testing.assert_close(found.draws, expected)
    assert watching() == 0


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, Recording]]:
    """Every recording that is made, and whether it slept."""
    found: list[tuple[bool, Recording]] = []

    def noted(*args: Any) -> Any:
        out, recording = record(*args)
        found.append((bool(args[4]), recording))
        return out, recording

    monkeypatch.setattr(forward, "record", noted)
    return found


def test_nothing_is_watched_before_the_head(recordings: list[tuple[bool, Recording]]) -> None:
    class Looks(Net):
        def forward(self, x: Tensor) -> Tensor:
            features = self.features(x)
            before = watching()
            out = self.head(features)
            seen.append((before, watching()))
            return out

    seen: list[tuple[int, int]] = []
    byov.predict(byov.bayesianize(Looks(), HEAD), torch.randn(3, 5), 6, "loop")
    assert seen == [(0, 1)]  # and the later passes run the tape
    ((slept, recording),) = recordings
    assert slept
    assert recording.useful
    assert len(recording.tape) == 1
    assert 0.0 < recording.saved < 1.0


def test_where_it_slept_too_long_the_next_pass_is_watched_in_full(recordings: list[tuple[bool, Recording]]) -> None:
    """And no later batch sleeps."""
    byov.predict(byov.bayesianize(Skips(), HEAD), torch.randn(6, 5).split(3), 5, "loop")
    assert [slept for slept, _ in recordings] == [True, False, False]
    assert [recording.sound for _, recording in recordings] == [False, True, True]


def test_a_wholly_random_network_is_watched_from_the_start(recordings: list[tuple[bool, Recording]]) -> None:
    byov.predict(byov.bayesianize(Net(), byov.Gaussian()), torch.randn(3, 5), 5, "loop")
    assert not recordings[0][0]


def test_a_network_with_a_generator_of_its_own_runs_in_full() -> None:
    """Its noise is another in every pass, also where the draws are all alike."""
    model = byov.bayesianize(OwnNoise(), {"head.*": byov.Gaussian(-60.0)})
    found = byov.predict(model, torch.randn(3, 5), 4, "loop", keep=True)
    assert all((found.draws[i] - found.draws[0]).abs().max() > 1e-3 for i in range(1, 4))


class UsesTheFirstOne(Net):
    """A weight that no call met in its own pass is used later, when that pass is long over."""

    first: Any = None

    def forward(self, x: Tensor) -> Tensor:
        out = self.features(x)[:, :3]
        if self.first is None:
            self.first = self.head.weight
            return out
        return out + self.first.sum()


def test_a_pass_that_is_over_is_not_watched() -> None:
    byov.predict(byov.bayesianize(UsesTheFirstOne(), HEAD), torch.randn(3, 5), 4, "loop")
    assert watching() == 0


def test_an_exception_leaves_nobody_watching() -> None:
    class Fails(Net):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            raise KeyError("no")

    model = byov.bayesianize(Fails(), HEAD)
    with pytest.raises(KeyError, match="no"):
        byov.predict(model, torch.randn(3, 5), 5)
    assert watching() == 0
    assert model.net.head.weight is None
