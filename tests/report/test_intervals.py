"""Intervals against scipy's, the bootstrap against brute force, the diagram against the library's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from byov.metrics.functional import calibration_error, reliability_diagram
from byov.report.diagrams import diagram
from byov.report.intervals import ImageRecords, Interval, mean_error, over_images, over_seeds, wilson


def test_seeds_are_compared_by_welch_and_two_readings_of_the_same_runs_in_pairs() -> None:
    first, second = [1.0, 2.0, 3.5], [1.2, 2.1, 3.9]
    found, pairs = over_seeds(first, second), over_seeds(first, second, paired=True)
    variance = np.var(first, ddof=1) / 3 + np.var(second, ddof=1) / 3
    freedom = variance**2 / (np.var(first, ddof=1) ** 2 / 18 + np.var(second, ddof=1) ** 2 / 18)
    reach = stats.t.ppf(0.975, freedom) * variance**0.5
    assert (found.value, found.low, found.high) == pytest.approx((7 / 30, 7 / 30 - reach, 7 / 30 + reach))
    reach = stats.t.ppf(0.975, 2) * np.std(np.subtract(second, first), ddof=1) / 3**0.5
    assert (pairs.value, pairs.low, pairs.high) == pytest.approx((7 / 30, 7 / 30 - reach, 7 / 30 + reach))
    assert (found.over, pairs.over) == ("seeds", "seeds")
    assert over_seeds([1.0, 1.0], [3.0, 3.0]) == Interval(2.0, 2.0, 2.0, "seeds")  # no spread at all
    with pytest.raises(ValueError, match="two runs on each side"):
        over_seeds([1.0], [1.0, 2.0])


@pytest.mark.filterwarnings("error")
def test_equal_scores_on_one_side_are_no_cause_for_a_warning() -> None:
    found = over_seeds([0.97, 0.97, 0.97], [0.96, 0.98, 0.97])
    reach = stats.t.ppf(0.975, 2) * np.std([0.96, 0.98, 0.97], ddof=1) / 3**0.5
    assert (found.low, found.high) == pytest.approx((-reach, reach))
    assert over_seeds([1.0, 2.0, 3.0], [3.0, 4.0, 5.0], paired=True) == Interval(2.0, 2.0, 2.0, "seeds")


def test_an_interval_tells_on_which_side_of_0_it_lies() -> None:
    signs = [Interval(0, low, high).sign for low, high in ((-2.0, -1.0), (-1.0, 1.0), (1.0, 2.0), (None, None))]
    assert signs == [-1, 0, 1, None]
    assert mean_error([1.0, 3.0]) == (2.0, pytest.approx(1.0))
    assert mean_error([1.0]) == (1.0, None)


def predictions(n: int, seed: int, honest: float) -> dict[str, list[float]]:
    """Confidences, and hits with a probability of `honest` times that."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.3, 1.0, n).astype(np.float32).astype(np.float64)
    return {
        "confidence": confidence.tolist(),
        "correct": (rng.uniform(size=n) < honest * confidence).astype(int).tolist(),
    }


def as_probabilities(row: dict[str, list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Two classes of probability p and 1 − p need p ≥ 1/2, so a third one takes its share."""
    p = torch.tensor(row["confidence"], dtype=torch.float64)
    rest = (1 - p) / 9
    return torch.cat([p[:, None], rest[:, None].expand(-1, 9)], 1), 1 - torch.tensor(row["correct"])


def test_a_confidence_on_an_edge_is_in_the_bin_below() -> None:
    row = {"confidence": [0.4, 0.41, 0.6, 0.61, 0.8, 0.81], "correct": [1, 0, 1, 0, 1, 0]}
    wanted = calibration_error(*as_probabilities(row), bins=5).item()
    assert ImageRecords.of([row]).ece(torch.ones(1, 6).double(), 5).item() == pytest.approx(wanted, abs=1e-12)
    assert wanted > 0.3  # a bin that took both of a pair would take hit and miss together


def test_a_resample_is_what_drawing_the_images_again_gives() -> None:
    rows, rng = [predictions(200, seed, 0.7) for seed in (3, 4)], np.random.default_rng(1)
    picked = rng.integers(200, size=200)
    again = [{key: np.array(values)[picked].tolist() for key, values in row.items()} for row in rows]
    counts = np.stack([np.ones(200), np.bincount(picked, minlength=200)])  # the data itself, and a resample
    wanted = [
        np.mean([calibration_error(*as_probabilities(row), bins=15).item() for row in each]) for each in (rows, again)
    ]
    assert ImageRecords.of(rows).ece(torch.from_numpy(counts), 15).numpy() == pytest.approx(wanted, abs=1e-12)


def test_images_tell_models_apart_that_differ_and_not_those_that_do_not() -> None:
    good, bad, other = (
        ImageRecords.of([predictions(1000, seed, honest)]) for seed, honest in ((0, 1.0), (1, 0.6), (2, 1.0))
    )
    assert over_images([good], [bad], 15).sign == 1
    assert over_images([bad], [good], 15).sign == -1
    assert over_images([good], [other], 15).sign == 0
    assert over_images([good], [good], 15) == Interval(0.0, 0.0, 0.0, "images")
    with pytest.raises(ValueError, match="on the same images"):
        over_images([good], [ImageRecords.of([predictions(10, 0, 1.0)])], 15)


def test_the_reach_of_the_bootstrap_is_that_of_new_test_sets() -> None:
    """Over 200 fresh test sets the ECE of a model has the deviation that one of them claims, within 25 %."""
    once = torch.ones(1, 800).double()
    fresh = [ImageRecords.of([predictions(800, s, 0.7)]).ece(once, 15).item() for s in range(200)]
    claimed = over_images([], [ImageRecords.of([predictions(800, 1000, 0.7)])], 15)
    assert claimed.high is not None
    assert (claimed.high - claimed.value) / 1.96 == pytest.approx(np.std(fresh), rel=0.25)


def test_the_diagram_is_the_librarys_with_wilsons_interval() -> None:
    row = predictions(300, 5, 0.8)
    found, wanted = diagram([row]), reliability_diagram(*as_probabilities(row), bins=15)
    seen = wanted.count > 0
    assert [p["count"] for p in found["points"]] == wanted.count[seen].tolist()
    assert [p["accuracy"] for p in found["points"]] == pytest.approx(wanted.accuracy[seen].tolist())
    assert [p["confidence"] for p in found["points"]] == pytest.approx(wanted.confidence[seen].tolist(), abs=1e-6)
    assert found["ece"] == pytest.approx(calibration_error(*as_probabilities(row)).item(), abs=1e-6)
    for hits, count in ((0, 7), (3, 7), (7, 7)):
        interval = stats.binomtest(hits, count).proportion_ci(0.95, "wilson")
        assert wilson(hits / count, count) == pytest.approx((interval.low, interval.high), abs=1e-4)
