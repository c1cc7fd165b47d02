"""Inputs and labels are found in whatever a loader gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from byov.posthoc.labelled import labelled

X, Y = torch.randn(6, 2), torch.arange(6)


class Two(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b


@pytest.mark.parametrize(
    "loader",
    [
        (X, Y),
        [(X, Y)],
        [(X, Y, torch.arange(6, 12))],  # as with the examples' numbers
        (X.numpy(), Y.numpy()),
        [[X[:4], Y[:4]], [X[4:], Y[4:]]],
        DataLoader(TensorDataset(X, Y), 4),
        TensorDataset(X, Y),
        [{"labels": Y, "input": X}],
        {"targets": Y, "input": X},
        [{"label": Y.tolist(), "input": X}],
    ],
    ids=lambda loader: type(loader).__name__,
)
def test_one_input(loader: Any) -> None:
    found = list(labelled(loader, nn.Linear(2, 2)))
    parts = [each["input"] if isinstance(each, dict) else each for each, _ in found]
    np.testing.assert_array_equal(np.concatenate([np.asarray(part) for part in parts]), X)
    assert torch.equal(torch.cat([labels for _, labels in found]), Y)


@pytest.mark.parametrize("batch", [(X, X + 1, Y), ((X, X + 1), Y)], ids=["flat", "nested"])
def test_two_inputs(batch: Any) -> None:
    (((a, b), labels),) = labelled([batch], Two())
    assert torch.equal(b, a + 1)
    assert torch.equal(labels, Y)


@pytest.mark.parametrize("loader", [X, [X], [(X,)], [{"input": X}]])
def test_labels_that_are_not_there(loader: Any) -> None:
    with pytest.raises(ValueError, match=r"^The labels are needed, too: give a loader of \(x, y\) pairs, .*\.$"):
        list(labelled(loader, nn.Linear(2, 2)))
