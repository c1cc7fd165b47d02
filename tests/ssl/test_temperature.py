"""Folds have their share of every class."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from byov.ssl.temperature import folds


@given(st.lists(st.integers(2, 9), min_size=1, max_size=6), st.integers(2, 7), st.integers(0, 99))
def test_folds_have_their_share_of_every_class(sizes: list[int], count: int, seed: int) -> None:
    labels = torch.cat([torch.full((size,), c) for c, size in enumerate(sizes)])
    fold = folds(labels, count, seed)
    used = min(count, *sizes, 99)
    assert set(fold.tolist()) == set(range(used))
    for c, size in enumerate(sizes):
        shares = fold[labels == c].bincount(minlength=used)
        assert shares.sum() == size
        assert shares.max() - shares.min() <= 1
