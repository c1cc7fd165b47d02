"""Corruption errors against the formulas of the patching paper, D.4, written out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byov.metrics.functional import (
    corruption_error,
    mean_corruption_error,
    relative_corruption_error,
    relative_mean_corruption_error,
)

Errors = dict[str, list[float]]


@st.composite
def models(draw: st.DrawFn) -> tuple[Errors, float, Errors, float]:
    severities, clean = draw(st.integers(1, 5)), st.floats(0.0, 0.29)
    errors, baseline = (
        {name: draw(st.lists(st.floats(least, 1.0), min_size=severities, max_size=severities)) for name in "abc"}
        for least in (0.0, 0.3)
    )
    return errors, draw(clean), baseline, draw(clean)


@given(models())
def test_the_formulas(model: tuple[Errors, float, Errors, float]) -> None:
    errors, clean, baseline, baseline_clean = model
    ce = {c: 100 * sum(errors[c]) / sum(baseline[c]) for c in errors}
    assert {c: v.item() for c, v in corruption_error(errors, baseline).items()} == pytest.approx(ce, rel=1e-9)
    assert mean_corruption_error(errors, baseline).item() == pytest.approx(sum(ce.values()) / 3, rel=1e-9)
    for denominator, other in (("baseline", baseline_clean), ("own", clean)):
        rce = {
            c: 100 * (sum(errors[c]) - len(errors[c]) * clean) / (sum(baseline[c]) - len(errors[c]) * other)
            for c in errors
        }
        values = relative_corruption_error(*model, denominator)
        assert {c: v.item() for c, v in values.items()} == pytest.approx(rce, rel=1e-7, abs=1e-7)
        mean = relative_mean_corruption_error(*model, denominator).item()
        assert mean == pytest.approx(sum(rce.values()) / 3, rel=1e-7, abs=1e-7)
