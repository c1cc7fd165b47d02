"""A posterior adds a fixed number of operations to a step, however many parameters the network has.

Work per parameter is what makes other libraries slow where layers are thin and many. Operations are counted, not
seconds, so that no machine is too busy for this test; `benchmarks/` measures the seconds.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import byov
from byov.posterior.factor import Factor
from byov.posterior.family import Noise
from byov.train.optimizers import build_optimizer

FEW, MANY, WIDTH = 4, 64, 8


class Operations(TorchDispatchMode):
    """Counts the operations that read or write numbers; a view does neither."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(function)] += not function.is_view and "split" not in str(function)
        return function(*args, **(kwargs or {}))


def operations(layers: int, rules: object | None) -> int:
    """Count the operations of a training step of a chain of layers, with a posterior or without."""
    model: Any = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
    model = model if rules is None else byov.bayesianize(model, rules)
    optimizer = build_optimizer("adamw", model, lr=1e-3)
    x, y = torch.randn(4, WIDTH), torch.randint(WIDTH, (4,))
    with Operations() as found:
        loss = F.cross_entropy(model(x), y)
        (loss if rules is None else loss + model.kl() / 1000).backward()
        optimizer.step()
    return found.counts.total()


def added_by_depth(rules: object) -> int:
    """Count what each further layer costs with a posterior, beyond what it costs without."""
    with_posterior, without = (operations(MANY, each) - operations(FEW, each) for each in (rules, None))
    return (with_posterior - without) // (MANY - FEW)


@pytest.mark.parametrize(
    "rules",
    [byov.Gaussian(), {byov.output_layer: byov.EMP(5)}, {byov.output_layer: byov.ECMP(5)}],
    ids=["Gaussian", "EMP", "ECMP"],
)
def test_a_posterior_adds_no_operations_per_parameter(rules: object) -> None:
    assert added_by_depth(rules) <= 0


def drawn_one_by_one(self: Factor, noise: Noise) -> dict[str, Tensor]:
    """The draw as most libraries make it: every parameter by itself, with a copy."""
    named, start = {}, 0
    for slot in self.layout.slots:
        part = slice(start, start := start + slot.numel)
        mean, log_var, eps = (t[part].clone() for t in (self.mean, self.log_var, noise["eps"]))
        named[slot.name] = (mean + torch.exp(0.5 * log_var) * eps).view(slot.shape).clone()
    return named


def test_a_loop_over_parameters_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Factor, "draw", drawn_one_by_one)
    assert added_by_depth(byov.Gaussian()) > 5
