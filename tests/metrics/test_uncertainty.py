"""Entropy and mutual information against scipy and closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from scipy.stats import entropy as scipy_entropy
from torch import Tensor

from byov.metrics.functional import entropy, mutual_information

from .inputs import problems, random_problem


@given(problems())
def test_entropy_matches_scipy(problem: tuple[Tensor, Tensor]) -> None:
    probs, _ = problem
    assert entropy(probs).numpy() == pytest.approx(scipy_entropy(probs.numpy(), axis=1), abs=1e-12)


def test_total_is_aleatoric_plus_epistemic() -> None:
    draws = torch.stack([random_problem(seed, 20, 4)[0] for seed in range(7)])
    aleatoric = np.mean([scipy_entropy(draw.numpy(), axis=1) for draw in draws], axis=0)
    total = scipy_entropy(draws.mean(0).numpy(), axis=1)
    assert mutual_information(draws).numpy() == pytest.approx(total - aleatoric, abs=1e-12)


def test_agreeing_draws_have_none_and_opposed_ones_all() -> None:
    probs, _ = random_problem(0, 20, 4)
    agreeing = mutual_information(probs.expand(5, 20, 4))
    assert agreeing.numpy() == pytest.approx(np.zeros(20), abs=1e-12)
    assert (agreeing >= 0).all()
    assert mutual_information(torch.eye(3)[:, None]).item() == pytest.approx(math.log(3))
