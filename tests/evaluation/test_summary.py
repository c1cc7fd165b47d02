"""Corruption errors beside a baseline, by hand."""

from __future__ import annotations

import pytest

from byov.evaluation import Row
from byov.evaluation.summary import corruption_errors


def rows(at_mean: list[float], under_draws: list[float]) -> list[Row]:
    """Top-1 on clean images and under one corruption at severities 1 and 2."""
    keys = [("clean", 0), ("fog", 1), ("fog", 2)]
    pairs = zip(keys, at_mean, under_draws, strict=True)
    return [Row(*key, {"top1": mean}, {"top1": drawn}) for key, mean, drawn in pairs]


def test_both_readings_are_compared_with_the_baseline_at_its_mean() -> None:
    ours, baseline = rows([0.9, 0.7, 0.5], [0.95, 0.8, 0.6]), rows([0.8, 0.6, 0.4], [0.7, 0.3, 0.1])
    found = corruption_errors(ours, baseline)
    assert found["at_mean"]["mCE"] == pytest.approx(100 * (0.3 + 0.5) / (0.4 + 0.6))
    assert found["under_draws"]["mCE"] == pytest.approx(100 * (0.2 + 0.4) / (0.4 + 0.6))
    assert found["at_mean"]["relative_mCE"] == pytest.approx(100 * (0.2 + 0.4) / (0.2 + 0.4))
    assert found["under_draws"]["relative_mCE"] == pytest.approx(100 * (0.15 + 0.35) / (0.2 + 0.4))
