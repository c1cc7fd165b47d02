"""What the BYOV paper says in words about its Table 1 and Figure 2, judged on made-up readings."""

from __future__ import annotations

from typing import Any

import pytest

from byov.reproduce import byov_accuracy


def test_statements_on_table_1_hold_with_the_paper_s_own_numbers() -> None:
    rows: list[Any] = [
        {"scores": {"top1": [top1 / 100, 0.001]}, "paper": {"top1": top1}} for *_, top1, _ in byov_accuracy.ROWS
    ]
    found = byov_accuracy._statements(rows)
    assert [c.paper for c in found] == pytest.approx([75.57 - 74.23, 73.62 - 72.60, 74.23 - 72.69])
    assert [c.ours for c in found] == pytest.approx([c.paper for c in found])
    assert {c.verdict for c in found} == {"as in the paper"}
    rows[4]["scores"]["top1"][0] = 0.80
    assert byov_accuracy._statements(rows)[0].verdict == "opposite to the paper"


def test_two_priors_are_alike_or_they_are_not() -> None:
    def scored(top1: float) -> byov_accuracy.Measured:
        return {score: [top1, 0.001] for score in byov_accuracy.SHOWN}

    for other, verdict in (
        (0.702, "little difference, as in the paper"),
        (0.72, "a clear difference, unlike in the paper"),
    ):
        grid = {"normal": {"1": scored(0.7)}, "teacher-mean": {"1": scored(other)}}
        row = byov_accuracy.compare(scored(0.7), grid)[-1]
        assert (row.quantity, row.verdict) == ("N(0, I), top-1 %: better than N(μ_T, I) by", verdict)
