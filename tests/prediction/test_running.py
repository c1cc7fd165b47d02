"""Draws that wait to be taken in together, as on a GPU, give what they give one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

import byov
from byov.prediction import running
from byov.prediction.result import Moments
from byov.prediction.running import Running


class Cuda(Tensor):
    """A tensor that says it lies on a GPU."""

    is_cuda = property(lambda self: True)  # type: ignore[assignment]


@pytest.mark.parametrize(
    "options",
    [
        {"samples": 2, "keep": True},
        {"samples": 10},
        {"samples": 100, "tolerance": 0.05},
        {"samples": 33, "task": "regression", "precision": 2.0, "keep": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("small", [1 << 22, 40])
def test_as_one_by_one(options: dict[str, Any], strategy: Any, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)), torch.randn(12, 4)
    model, found = byov.bayesianize(net, byov.Gaussian(-1.0)), []
    take, update = Running.take, Moments.update
    chunks: list[int] = []

    def seen(self: Moments, values: Tensor) -> None:
        chunks.append(len(values))
        update(self, values)

    monkeypatch.setattr(running, "SMALL", small)
    for cuda in (False, True):
        if cuda:
            monkeypatch.setattr(Running, "take", lambda self, values: take(self, values.as_subclass(Cuda)))
            monkeypatch.setattr(Moments, "update", seen)
        loader = [x[:5], x[5:]]
        found.append(byov.predict(model, loader, strategy=strategy, generator=Generator().manual_seed(0), **options))
    one, together = found
    for name in ("mean", "std", "entropy", "mutual_information", "draws"):
        expected, got = getattr(one, name), getattr(together, name)
        if expected is not None:
            torch.testing.assert_close(got.as_subclass(Tensor), expected)
    assert torch.equal(torch.as_tensor(together.samples), torch.as_tensor(one.samples))
    if strategy == "loop" and options["samples"] == 10:
        assert chunks == ([1, 1] * 10 if small == 40 else [1, 1, 8, 8, 1, 1])
