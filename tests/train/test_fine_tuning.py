"""Fine-tuning between rounds of pruning: what cannot be done is refused, and weights that are no numbers are told."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from byov.data import ImageSet
from byov.train.supervised import FineTune, Supervised

IMAGES = ImageSet("eight", torch.arange(512).view(8, 1, 8, 8).byte(), torch.arange(8) % 2, ("a", "b"))


def tune(lr: float, std: float = 0.25) -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    FineTune(Supervised(), IMAGES, (0.5,), (std,), epochs=3, lr=lr)(net)
    return net


@pytest.mark.parametrize("lr", [0.0, -1.0, float("nan"), float("inf"), 1e38])
def test_a_learning_rate_is_one_that_an_optimizer_can_take(lr: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"a learning rate above 0 and at most 1,000,000, not 3 and {lr}")):
        tune(lr)


def test_weights_that_are_no_numbers_are_not_kept() -> None:
    assert all(bool(p.isfinite().all()) for p in tune(1e-3).parameters())
    with pytest.raises(
        ValueError, match=r"^Fine-tuning diverged with a learning rate of 0\.001: choose a lower one\.$"
    ):
        tune(1e-3, std=1e-45)  # infinite pixels
