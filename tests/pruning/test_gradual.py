"""Gradual pruning: the schedule, the masks that are held, and the ranking of later rounds."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import byov
from byov.pruning import cubic, layers, prune_gradually


@pytest.fixture
def model() -> byov.BayesianModule:
    """A posterior whose deviations differ from weight to weight."""
    torch.manual_seed(0)
    model = byov.bayesianize(nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)), byov.Gaussian())
    nn.init.uniform_(model.factors[0].get_parameter("log_var"), -12, -4)
    return model.eval()


class FineTune:
    """A few steps of Adam, with one optimizer for all rounds; it remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[nn.Module, list[int], list[Tensor]]] = []
        self.optimizer: Any = None

    def __call__(self, net: nn.Module) -> None:
        assert net.training
        masks = [buffer.clone() for name, buffer in net.named_buffers() if name.endswith("_mask")]
        self.given.append((net, [row.zeros for row in layers(net)], masks))
        self.optimizer = self.optimizer or torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=1e-3)
        for _ in range(3):
            self.optimizer.zero_grad()
            net(torch.randn(20, 64)).square().mean().backward()
            self.optimizer.step()


def test_the_cubic_schedule() -> None:
    assert cubic(0.8, 1) == [0.8]
    found = cubic(0.9, 3)
    assert found == pytest.approx([0.9 * 19 / 27, 0.9 * 26 / 27, 0.9])


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("by", ["snr", "magnitude"])
def test_masks_grow_round_by_round_and_are_held(model: byov.BayesianModule, by: Any, scope: Any) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    tune, reported = FineTune(), []
    net = prune_gradually(model, tune, 0.9, 4, by, scope, report=lambda s, _: reported.append(s))
    assert reported == cubic(0.9, 4)
    assert all(given is net for given, _, _ in tune.given)
    sizes = [64 * 48, 48 * 10]
    for step, (_, zeros, _) in zip(reported, tune.given, strict=True):
        if scope == "layer":
            assert zeros == [round(step * size) for size in sizes]
        else:
            assert sum(zeros) == round(step * sum(sizes))
    for (_, _, earlier), (_, _, later) in pairwise(tune.given):
        assert all((new <= old).all() for old, new in zip(earlier, later, strict=True))
    final: Any = net
    for layer in (final[0], final[2]):
        assert torch.equal(layer.weight == 0, layer.weight_mask == 0)
    state = model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in before.items())


def test_later_rounds_rank_by_the_weight_as_it_is_over_its_deviation(model: byov.BayesianModule) -> None:
    """Round two takes, of what is left, the least |w|/σ with w as fine-tuning left it."""
    seen: list[Any] = []

    def shuffle(net: Any) -> None:
        if not seen:
            with torch.no_grad():
                net[0].weight_orig.copy_(torch.rand(48, 64) + 0.1)
        seen.append((net[0].weight_orig.detach().clone(), net[0].weight_mask.clone()))

    prune_gradually(model, shuffle, 0.6, 2, schedule=lambda s, n: [0.3, s])
    (weight, first), (_, second) = seen
    snr = weight / model.std()["0.weight"]
    snr[first == 0] = 0
    expected = snr > snr.flatten().kthvalue(round(0.6 * snr.numel())).values
    assert torch.equal(second.bool(), expected)


def test_a_plain_network_and_tied_weights() -> None:
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight

    def step(net: nn.Module) -> None:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        net(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()

    net: Any = prune_gradually(tied, step, 0.5, 3, "magnitude")
    assert [row.zeros for row in layers(net)] == [8]
    assert net[0].weight_orig is net[2].weight_orig
    assert net[0].weight_mask is net[2].weight_mask


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rounds": 0}, "at least one round, not 0"),
        ({"rounds": 2.0}, "at least one round"),
        ({"sparsity": 1.0}, "below 1"),
        ({"schedule": lambda s, n: [0.5, 0.4]}, "rise within"),
        ({"schedule": lambda s, n: []}, "rise within"),
        ({"by": "luck"}, "'luck'"),
        ({"by": "random"}, "snr or magnitude, not by 'random'"),
    ],
)
def test_bad_input_is_refused_before_any_training(change: dict[str, Any], says: str) -> None:
    def never(net: nn.Module) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match=says):
        prune_gradually(nn.Linear(3, 2), never, **{"by": "magnitude", **change})


def test_a_fine_tuning_that_diverges_is_told() -> None:
    def diverge(net: Any) -> None:
        net.weight_orig.data.fill_(float("nan"))

    with pytest.raises(ValueError, match="diverged"):
        prune_gradually(nn.Linear(3, 2), diverge, 0.5, 2, "magnitude")
