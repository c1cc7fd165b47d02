"""Memory is used again, values are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Generator, nn

import byov
from byov.prediction import recycle
from byov.prediction.recycle import Recycle

from .networks import by_hand


def test_the_same_call_gets_the_same_memory_and_its_own_values() -> None:
    memory, places, values = Recycle(), [], []
    for seed in range(3):
        generator = Generator().manual_seed(seed)
        with memory:
            large = torch.randn(recycle.LARGE, generator=generator)
            other = torch.rand(recycle.LARGE, generator=generator)
            small = torch.randn(3, generator=generator)
        places.append((large.data_ptr(), other.data_ptr()))
        values.append((large.clone(), other.clone(), small))
    assert len(set(places)) == 1
    assert places[0][0] != places[0][1]
    for seed, (large, other, small) in enumerate(values):
        generator = Generator().manual_seed(seed)
        assert torch.equal(large, torch.randn(recycle.LARGE, generator=generator))
        assert torch.equal(other, torch.rand(recycle.LARGE, generator=generator))
        assert torch.equal(small, torch.randn(3, generator=generator))


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("strategy", ["loop", "auto"])
def test_large_posteriors_predict_as_by_hand(strategy: Any, task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where what the network returns is itself made by a recycled call, and is kept."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.scale = nn.Linear(8, 6), nn.Parameter(torch.randn(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.linear(x)
            return torch.addcmul(h, h, self.scale)

    monkeypatch.setattr(recycle, "LARGE", 1)
    model, x = byov.bayesianize(Scaled(), byov.Gaussian(-3.0)), torch.randn(4, 8)
    found = byov.predict(model, x, 9, strategy, generator=Generator().manual_seed(5), keep=True, task=task)
    expected = by_hand(model, x, 9, seed=5, softmax=task == "classification")
    torch.testing.assert_close(found.draws, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.mean, expected.mean(0), rtol=0, atol=1e-5)
