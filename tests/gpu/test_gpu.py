"""The GPU cases under pytest, one by one; `make test-gpu` runs them in parallel."""

from __future__ import annotations

from itertools import combinations, product

import pytest
import torch

from .all_cases import CASES
from .registry import Setting, perform
from .steps import CHOICES, GRID


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("name", CASES)
def test_gpu(name: str) -> None:
    print(perform(CASES[name], Setting(torch.device("cuda"))))


def test_every_pair_of_choices_is_compiled() -> None:
    for (i, first), (j, second) in combinations(enumerate(CHOICES), 2):
        assert {(row[i], row[j]) for row in GRID} == set(product(first, second))
