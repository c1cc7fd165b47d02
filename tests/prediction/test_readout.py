"""Draws of a last linear layer as one product predict what they do one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

import byov
from byov.prediction import forward, readout
from byov.prediction.reuse import Recording


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU too, where it does not pay."""
    monkeypatch.setattr(readout, "pays", lambda x: True)


class Scaled(nn.Linear):
    """Not a linear layer of its weights alone: the pass goes on after it."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Turned(nn.Linear):
    """By keyword, as nobody else calls it."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, weight=self.weight, bias=self.bias)


def net(last: nn.Module, *after: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), last, *after)


def both(model: byov.BayesianModule, x: Tensor, **options: Any) -> tuple[byov.Prediction, byov.Prediction]:
    def draws(strategy: Any) -> byov.Prediction:
        return byov.predict(model, x, 9, strategy, generator=Generator().manual_seed(0), keep=True, **options)

    return draws("loop"), draws("vmap")


def last(name: str, module: nn.Module, parameter: Tensor) -> bool:
    return name.startswith("4.")


def weight(name: str, module: nn.Module, parameter: Tensor) -> bool:
    return name == "4.weight"


def bias(name: str, module: nn.Module, parameter: Tensor) -> bool:
    return name == "4.bias"


@pytest.mark.parametrize(
    ("model", "rule", "one_product"),
    [
        (net(nn.Linear(16, 3)), last, True),
        (net(nn.Linear(16, 3, bias=False)), last, True),
        (net(nn.Linear(16, 1)), last, True),
        (net(nn.Linear(16, 3)), weight, False),
        (net(nn.Linear(16, 3)), bias, False),
        (net(Scaled(16, 3)), last, False),
        (net(Turned(16, 3)), last, False),
        (net(nn.Linear(16, 3), nn.Linear(3, 3)), last, False),
    ],
    ids=["plain", "no bias", "one output", "weight alone", "bias alone", "scaled", "by keyword", "not the last"],
)
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_as_one_by_one(
    model: nn.Module, rule: Any, one_product: bool, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batched: list[object] = []
    monkeypatch.setattr(Recording, "useful", property(lambda self: self.sound))  # else by the time that the layers took
    whole = forward.batching
    monkeypatch.setattr(forward, "batching", lambda: batched.append(None) or whole())
    bayesian, x = byov.bayesianize(model, {rule: byov.Gaussian(-2.0)}), torch.randn(6, 4)
    one, several = both(bayesian, x, task=task)
    assert one.draws is not None
    assert one.draws.std(0).min() > 1e-4 or one.draws.shape[2] == 1
    torch.testing.assert_close(several.draws, one.draws)
    torch.testing.assert_close(several.std, one.std)
    assert several.strategy == "vmap"
    assert (not batched) == one_product


def test_tokens_are_left_to_vmap() -> None:
    bayesian = byov.bayesianize(net(nn.Linear(16, 3)), {last: byov.Gaussian(-2.0)})
    one, several = both(bayesian, torch.randn(6, 5, 4), task="regression")
    torch.testing.assert_close(several.draws, one.draws)


def test_low_precision_is_predicted_in_float32() -> None:
    bayesian = byov.bayesianize(net(nn.Linear(16, 3)), {last: byov.Gaussian(-2.0)})
    with torch.autocast("cpu", torch.bfloat16):
        one, several = both(bayesian, torch.randn(6, 4))
    assert several.draws is not None
    assert several.draws.dtype == several.mean.dtype == torch.float32
    torch.testing.assert_close(several.draws, one.draws, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(several.mean.sum(1), torch.ones(6))


class Own(nn.Module):
    """A last layer with a weight and a bias of any shapes that `F.linear` takes."""

    def __init__(self, weight: tuple[int, ...], bias: tuple[int, ...] | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(weight))
        self.bias = None if bias is None else nn.Parameter(torch.randn(bias))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@pytest.mark.parametrize(
    ("weight", "bias", "samples"),
    [((6, 16), (6, 1), 9), ((6, 16), (1,), 9), ((6, 16), (), 9), ((16,), None, 9), ((16,), None, 2)],
)
def test_a_bias_that_broadcasts_and_a_weight_that_is_a_vector(
    weight: tuple[int, ...], bias: tuple[int, ...] | None, samples: int
) -> None:
    bayesian = byov.bayesianize(net(Own(weight, bias)), {last: byov.Gaussian(-1.0)})
    x, found = torch.randn(6, 4), []
    for strategy in ("loop", "vmap", "auto"):
        generator = Generator().manual_seed(0)
        found.append(byov.predict(bayesian, x, samples, strategy, generator=generator, keep=True, task="regression"))  # type: ignore[arg-type]
    torch.testing.assert_close(found[1].draws, found[0].draws)
    torch.testing.assert_close(found[2].draws, found[0].draws)
