"""Accuracy and the log score against scikit-learn and brute force."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, top_k_accuracy_score
from torch import Tensor
from torch.nn import functional as F

from byov.metrics.functional import accuracy, nll

from .inputs import problems, random_problem


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_accuracy_matches_scikit_learn(top_k: int) -> None:
    probs, labels = random_problem(0, 500, 5)
    expected = top_k_accuracy_score(labels.numpy(), probs.numpy(), k=top_k, labels=range(5))
    assert accuracy(probs, labels, top_k).item() == pytest.approx(expected, abs=1e-12)


@given(problems(), st.data())
def test_accuracy_is_a_stable_sort(problem: tuple[Tensor, Tensor], data: st.DataObject) -> None:
    probs, labels = problem
    top_k = data.draw(st.integers(1, probs.shape[1]))
    hits = [label in sorted(range(len(row)), key=lambda c: (-row[c], c))[:top_k]
            for row, label in zip(probs.tolist(), labels.tolist(), strict=True)]  # fmt: skip
    assert accuracy(probs, labels, top_k).item() == pytest.approx(sum(hits) / len(hits), abs=1e-12)
    assert accuracy(probs, labels, probs.shape[1]) == 1


def test_a_constant_forecast_is_not_rewarded() -> None:
    probs = torch.full((10, 10), 0.1)
    assert accuracy(probs, torch.arange(10)).item() == pytest.approx(0.1)
    assert accuracy(probs, torch.arange(10), top_k=3).item() == pytest.approx(0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nll_matches_scikit_learn_and_torch(dtype: torch.dtype) -> None:
    probs, labels = random_problem(1, 500, 5)
    value = nll(probs.to(dtype), labels)
    assert value.dtype == torch.float64
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    assert value.item() == pytest.approx(log_loss(labels.numpy(), probs.numpy(), labels=range(5)), rel=tolerance)
    assert value.item() == pytest.approx(F.nll_loss(probs.log(), labels).item(), rel=tolerance)


@given(problems())
def test_log_input_is_the_same_number(problem: tuple[Tensor, Tensor]) -> None:
    probs, labels = problem
    own = probs[torch.arange(len(labels)), labels]
    value = nll(probs.log(), labels, log_input=True)
    if own.min() > 0:
        assert value.item() == pytest.approx(nll(probs, labels).item(), abs=1e-12)
    else:  # the logarithm of zero is not clamped
        assert value == math.inf


def test_an_underflowed_probability_costs_the_smallest_normal_number() -> None:
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert nll(probs, torch.tensor([1, 0])).item() == pytest.approx(-math.log(torch.finfo(torch.float32).tiny) / 2)
    probs = probs.double()
    assert nll(probs, torch.tensor([1, 0])).item() == pytest.approx(-math.log(torch.finfo(torch.float64).tiny) / 2)
