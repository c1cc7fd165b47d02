"""β over training and what N is: the numbers at the start, the middle and the end."""

from __future__ import annotations

from itertools import pairwise
from math import cos, pi
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import byov


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("cosine", [0.0, (1 - cos(pi / 4)) / 2, 0.5, (1 + cos(pi / 4)) / 2, 1.0]),
        ("linear", [0.0, 0.25, 0.5, 0.75, 1.0]),
        ("constant", [1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_beta_from_start_to_end(schedule: Any, values: list[float]) -> None:
    assert [byov.beta(step, 100, schedule=schedule) for step in (0, 25, 50, 75, 100)] == pytest.approx(values)
    scaled = [byov.beta(step, 100, end=0.01, schedule=schedule) for step in (0, 25, 50, 75, 100)]
    assert scaled == pytest.approx([0.01 * v for v in values])


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_beta_may_start_above_zero_and_come_down(schedule: Any) -> None:
    values = [byov.beta(step, 10, end=1.0, start=3.0, schedule=schedule) for step in (0, 5, 10)]
    assert values == pytest.approx([3.0, 2.0, 1.0])


@given(
    st.integers(-5, 300),
    st.integers(1, 200),
    st.floats(0, 5),
    st.floats(0, 5),
    st.sampled_from(["cosine", "linear", "constant"]),
)
def test_beta_stays_between_its_ends(step: int, total: int, end: float, start: float, schedule: Any) -> None:
    value = byov.beta(step, total, end, start, schedule)
    assert min(start, end) - 1e-9 <= value <= max(start, end) + 1e-9
    if step >= total:
        assert value == pytest.approx(end)


@given(st.integers(1, 200), st.sampled_from(["cosine", "linear"]))
def test_beta_never_falls_on_the_way_up(total: int, schedule: Any) -> None:
    values = [byov.beta(step, total, schedule=schedule) for step in range(total + 1)]
    assert all(a <= b for a, b in pairwise(values))


def test_bad_schedules_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="at least one step, not 0"):
        byov.beta(0, 0)
    with pytest.raises(ValueError, match="β is at least 0, not -1"):
        byov.beta(0, 10, end=-1)
    with pytest.raises(ValueError, match="'cosine', 'linear' or 'constant', not 'step'"):
        byov.beta(0, 10, schedule="step")


def test_kl_scale() -> None:
    assert byov.kl_scale("dataset", 50_000, 1_000) == 50_000.0
    assert byov.kl_scale("parameters", 50_000, 1_000) == 1_000.0
    assert byov.kl_scale("none", 50_000, 1_000) == 1.0
    assert byov.kl_scale(123, 50_000, 1_000) == 123.0
    assert byov.kl_scale(0.5, 50_000, 1_000) == 0.5


@pytest.mark.parametrize("scale", ["batch", None, True])
def test_an_unknown_kl_scale_is_refused(scale: Any) -> None:
    with pytest.raises(ValueError, match="'dataset', 'parameters', 'none' or a number"):
        byov.kl_scale(scale, 10, 10)


@pytest.mark.parametrize("scale", [0, -1.0, float("nan")])
def test_a_kl_scale_is_above_0(scale: float) -> None:
    with pytest.raises(ValueError, match="kl_scale must be above 0"):
        byov.kl_scale(scale, 10, 10)
    with pytest.raises(ValueError, match="kl_scale must be above 0"):
        byov.kl_scale("dataset", 0, 10)
