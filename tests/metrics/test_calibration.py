"""Calibration errors against brute force, their floor against models that are calibrated."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from byov.metrics import functional as F

from .inputs import problems, random_problem


def by_hand(probs: Tensor, labels: Tensor, ends: list[float], norm: str, min_count: int = 0) -> float | None:
    """Sample by sample, with comparisons: each in the first bin that ends at its confidence or above."""
    members: list[list[tuple[float, bool]]] = [[] for _ in ends]
    for row, label in zip(probs.tolist(), labels.tolist(), strict=True):
        confidence = max(row)
        r = next((r for r, end in enumerate(ends) if confidence <= end), -1)
        members[r].append((confidence, row.index(confidence) == label))
    kept = [m for m in members if m and len(m) >= min_count]
    gaps = [abs(sum(c for c, _ in m) - sum(hit for _, hit in m)) for m in kept]
    if not kept:
        return None
    return sum(gaps) / len(labels) if norm == "l1" else max(g / len(m) for g, m in zip(gaps, kept, strict=True))


@given(problems(), st.integers(1, 20), st.sampled_from(["l1", "max"]), st.integers(0, 4))
def test_matches_brute_force(problem: tuple[Tensor, Tensor], bins: int, norm: str, min_count: int) -> None:
    probs, labels = problem
    expected = by_hand(probs, labels, [r / bins for r in range(1, bins + 1)], norm, min_count)
    if expected is None:
        with pytest.raises(ValueError, match="no bin holds"):
            F.calibration_error(probs, labels, bins, norm, min_count)
    else:
        assert F.calibration_error(probs, labels, bins, norm, min_count).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_bins_are_open_on_the_left_in_every_precision(dtype: torch.dtype) -> None:
    """0.6, 0.7, 0.8, 0.9 and 1 are edges of ten bins: each must close its own bin, whatever its rounding."""
    top = torch.tensor([0.6, 0.7, 0.8, 0.9, 1.0], dtype=torch.float64)
    probs = torch.stack([top, 1 - top], dim=1).to(dtype)
    diagram = F.reliability_diagram(probs, torch.zeros(5, dtype=torch.int64), bins=10)
    assert diagram.count.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]


@given(problems(), st.integers(1, 20), st.sampled_from(["l1", "max"]))
def test_adaptive_bins_hold_equal_mass(problem: tuple[Tensor, Tensor], bins: int, norm: str) -> None:
    """The r-th ends at the ⌈rn/B⌉-th smallest confidence; equal ones stay together, in whatever order they come."""
    probs, labels = problem
    ordered = probs.amax(1).sort().values.tolist()
    ends = [ordered[-(-r * len(labels) // bins) - 1] for r in range(1, bins + 1)]
    expected = by_hand(probs, labels, ends, norm)
    assert F.adaptive_calibration_error(probs, labels, bins, norm).item() == pytest.approx(expected, abs=1e-12)


@given(problems(), st.integers(1, 20))
def test_the_diagram_holds_the_calibration_error(problem: tuple[Tensor, Tensor], bins: int) -> None:
    probs, labels = problem
    edges, count, confidence, accuracy = F.reliability_diagram(probs, labels, bins)
    assert edges.tolist() == [r / bins for r in range(bins + 1)]
    assert count.sum() == len(labels)
    assert torch.equal(confidence.isnan(), count == 0)
    assert torch.equal(accuracy.isnan(), count == 0)
    ece = (count * (confidence - accuracy).abs()).nansum() / len(labels)
    assert ece.item() == pytest.approx(F.calibration_error(probs, labels, bins).item(), abs=1e-12)


@pytest.mark.parametrize(("samples", "bins"), [(300, 10), (5000, 15)])
def test_the_floor_is_what_calibrated_models_read(samples: int, bins: int) -> None:
    """Labels drawn from the probabilities themselves, 400 times: the mean of their ECE, whose error is about 1.5 %."""
    probs, _ = random_problem(3, samples, 5)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.multinomial(probs, 1, generator=generator)[:, 0] for _ in range(400)]
    read = torch.stack([F.calibration_error(probs, labels, bins) for labels in drawn]).mean().item()
    assert F.calibration_floor(probs, bins).item() == pytest.approx(read, rel=0.06)


@pytest.mark.parametrize(("samples", "confidence", "most"), [(10, 0.9, 1.1), (1000, 0.999, 1.1), (10, 0.99, 1.5)])
def test_the_floor_of_a_confident_bin_is_too_large_by_a_tenth_where_an_error_is_expected(
    samples: int, confidence: float, most: float
) -> None:
    """E|x| of a binomial x about its mean, exactly; with a tenth of an error the normal one is 40 % too large."""
    probs = torch.tensor([[confidence, 1 - confidence]], dtype=torch.float64).expand(samples, 2)
    hits = torch.arange(samples + 1, dtype=torch.float64)
    chance = torch.distributions.Binomial(samples, torch.tensor(confidence, dtype=torch.float64)).log_prob(hits).exp()
    exact = (chance * (hits - samples * confidence).abs()).sum().item() / samples
    assert 1.0 < F.calibration_floor(probs).item() / exact < most


def test_a_confidence_rounded_above_one_has_no_floor() -> None:
    assert F.calibration_floor(torch.tensor([[1.0005, 0.0], [0.0, 1.0]])) == 0
