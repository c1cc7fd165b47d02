"""Digits and a small encoder, shared by the tests of features, heads and probes."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor


@cache
def _digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return (torch.tensor(data.images)[:, None] * 15.9375).byte(), torch.tensor(data.target)


@pytest.fixture
def digits() -> tuple[Tensor, Tensor]:
    """All 1,797 digits, uint8 (N, 1, 8, 8), and their labels."""
    return _digits()


@pytest.fixture
def vectors() -> tuple[Tensor, Tensor]:
    """The digits' pixels as features (N, 64), from 0 to 16, and their labels."""
    images, labels = _digits()
    return (images.flatten(1) / 15.9375).round(), labels
