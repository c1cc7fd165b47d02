"""Corruption errors against the formulas of the patching paper, D.4, written out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from byov.metrics.functional import (
    corruption_error,
    mean_corruption_error,
    relative_corruption_error,
    relative_mean_corruption_error,
)

error = st.floats(0.3, 1.0)
tables = st.integers(1, 5).flatmap(
    lambda severities: st.fixed_dictionaries(
        {name: st.lists(error, min_size=severities, max_size=severities) for name in ("fog", "snow", "jpeg")}
    )
)


@st.composite
def models(draw: st.DrawFn) -> tuple[dict[str, list[float]], dict[str, list[float]], float, float]:
    baseline = draw(tables)
    errors = {name: [draw(st.floats(0.0, 1.0)) for _ in values] for name, values in baseline.items()}
    return errors, baseline, draw(st.floats(0.0, 0.29)), draw(st.floats(0.0, 0.29))


@given(models())
def test_the_formulas(model: tuple[dict[str, list[float]], dict[str, list[float]], float, float]) -> None:
    errors, baseline, clean, baseline_clean = model
    ce = {c: 100 * sum(errors[c]) / sum(baseline[c]) for c in errors}
    assert {c: v.item() for c, v in corruption_error(errors, baseline).items()} == pytest.approx(ce, rel=1e-9)
    assert mean_corruption_error(errors, baseline).item() == pytest.approx(sum(ce.values()) / 3, rel=1e-9)
    for denominator, other in (("baseline", baseline_clean), ("own", clean)):
        rce = {
            c: 100 * (sum(errors[c]) - len(errors[c]) * clean) / (sum(baseline[c]) - len(errors[c]) * other)
            for c in errors
        }
        arguments = errors, clean, baseline, baseline_clean, denominator
        values = relative_corruption_error(*arguments)
        assert {c: v.item() for c, v in values.items()} == pytest.approx(rce, rel=1e-7, abs=1e-7)
        mean = sum(rce.values()) / 3
        assert relative_mean_corruption_error(*arguments).item() == pytest.approx(mean, rel=1e-7, abs=1e-7)


@given(tables, st.floats(0.0, 0.29))
def test_the_baseline_is_one_hundred_and_units_cancel(baseline: dict[str, list[float]], clean: float) -> None:
    assert mean_corruption_error(baseline, baseline).item() == pytest.approx(100)
    for denominator in ("baseline", "own"):
        value = relative_mean_corruption_error(baseline, clean, baseline, clean, denominator)
        assert value.item() == pytest.approx(100)
    percent = {name: 100 * torch.tensor(values) for name, values in baseline.items()}
    worse = {name: values * 1.5 for name, values in percent.items()}
    assert mean_corruption_error(worse, percent).item() == pytest.approx(150)


def test_the_papers_table_7_averages_to_its_mce() -> None:
    """EMP (BN+O): the fifteen CE_c of Table 7 average to the printed mCE, to its one decimal."""
    row = [98.4, 98.2, 98.5, 97.9, 98.8, 96.9, 98.3, 99.6, 101.1, 99.8, 97.9, 100, 95.4, 91.3, 94.2]
    baseline = {str(c): [0.5] for c in range(15)}
    errors = {str(c): [0.005 * value] for c, value in enumerate(row)}
    assert mean_corruption_error(errors, baseline).item() == pytest.approx(97.8, abs=0.05)
