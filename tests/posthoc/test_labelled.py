"""Inputs and labels are found in whatever a loader gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_networks import CausalLM
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import byov
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


@pytest.mark.parametrize(
    "batch",
    [(X, X + 1, Y), ((X, X + 1), Y), (X.numpy(), X.numpy() + 1, Y.numpy())],
    ids=["flat", "nested", "arrays"],
)
def test_two_inputs(batch: Any) -> None:
    (((a, b), labels),) = labelled([batch], Two())
    assert torch.equal(torch.as_tensor(b), torch.as_tensor(a) + 1)
    assert torch.equal(labels, Y)


def test_each_place_of_a_causal_language_model_predicts_the_next() -> None:
    """Temperature, conformal sets, Laplace and the check are those of the same logits and shifted labels."""
    net = CausalLM(3).requires_grad_(False)
    net.out.weight *= 3
    words = [torch.randint(3, (20,))]
    for _ in range(5):  # it predicts as well as it says: another alignment would ask for another temperature
        words.append(torch.multinomial(net(words[-1])["logits"].softmax(-1), 1)[:, 0])
    ids = torch.stack(words, 1)
    mapping = [{"input_ids": ids, "labels": ids}]
    pair = net.embed(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
    head, noise = net.out, {"samples": 4, "generator": torch.Generator()}
    assert byov.temperature(net, mapping).value == pytest.approx(byov.temperature(head, pair).value, rel=1e-5)
    assert_close(byov.conformal(net, mapping).threshold, byov.conformal(head, pair).threshold)
    assert_close(
        byov.laplace(net, mapping).evidence.log_marginal_likelihood,
        byov.laplace(head, pair).evidence.log_marginal_likelihood,
    )
    model = byov.bayesianize(net, {byov.output_layer: byov.Gaussian()})
    for given in (mapping, mapping[0], [(ids, ids, torch.arange(20))]):
        found = byov.check(model, given, **noise).at_mean
        assert found is not None
        assert found["nll"] == pytest.approx(float(cross_entropy(head(pair[0]), pair[1])), rel=1e-5)
