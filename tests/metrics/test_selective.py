"""Risk–coverage curves against brute force over orders, and areas against what theory says."""

from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from byov.metrics.functional import accuracy, aurc, entropy, risk_coverage

from .inputs import problems, random_problem


def test_matches_a_sort_where_nothing_ties() -> None:
    probs, labels = random_problem(0, 300, 4)
    confidence, predicted = probs.max(1)
    order = confidence.argsort(descending=True).tolist()
    errors = (predicted != labels).tolist()
    risks = [sum(errors[j] for j in order[:i]) / i for i in range(1, 301)]
    curve = risk_coverage(probs, labels)
    assert curve.risk.tolist() == pytest.approx(risks, abs=1e-12)
    assert curve.coverage.tolist() == pytest.approx([i / 300 for i in range(1, 301)])
    assert aurc(probs, labels).item() == pytest.approx(sum(risks) / 300, abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_ties_are_the_mean_over_all_orders(samples: list[tuple[int, bool]]) -> None:
    uncertainty = torch.tensor([float(u) for u, _ in samples])
    labels = torch.tensor([int(wrong) for _, wrong in samples])
    probs = torch.tensor([[1.0, 0.0]]).expand(len(samples), 2)
    curves = []
    for order in permutations(samples):
        wrong = [w for _, w in sorted(order, key=lambda sample: sample[0])]
        curves.append([sum(wrong[:i]) / i for i in range(1, len(wrong) + 1)])
    expected = torch.tensor(curves, dtype=torch.float64).mean(0)
    curve = risk_coverage(probs, labels, uncertainty)
    assert curve.risk.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    assert aurc(probs, labels, uncertainty).item() == pytest.approx(expected.mean().item(), abs=1e-12)


@given(problems())
def test_full_coverage_is_the_error_rate_and_no_information_is_flat(problem: tuple[Tensor, Tensor]) -> None:
    probs, labels = problem
    error = 1 - accuracy(probs, labels).item()
    assert risk_coverage(probs, labels).risk[-1].item() == pytest.approx(error, abs=1e-12)
    assert aurc(probs, labels, torch.ones(len(labels))).item() == pytest.approx(error, abs=1e-12)


def test_an_oracle_is_best_and_its_opposite_worst() -> None:
    probs, labels = random_problem(1, 400, 4)
    wrong = (probs.argmax(1) != labels).double()
    oracle, entropic, inverse = (aurc(probs, labels, score).item() for score in (wrong, entropy(probs), -wrong))
    assert oracle < entropic < wrong.mean().item() < inverse
