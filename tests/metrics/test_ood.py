"""Out-of-distribution scores against scikit-learn and scipy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu
from sklearn.metrics import roc_auc_score, roc_curve

from byov.metrics.functional import fpr95, fpr_at_tpr, ood_auroc

scores = st.lists(st.integers(0, 12), min_size=1, max_size=60).map(lambda xs: torch.tensor(xs) / 4)


@given(scores, scores)
def test_auroc_matches_scikit_learn_and_scipy(inside: torch.Tensor, outside: torch.Tensor) -> None:
    value = ood_auroc(inside, outside).item()
    truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    assert value == pytest.approx(roc_auc_score(truth, torch.cat([inside, outside]).numpy()), abs=1e-12)
    statistic = mannwhitneyu(outside.numpy(), inside.numpy(), method="asymptotic").statistic
    assert value == pytest.approx(statistic / (len(inside) * len(outside)), abs=1e-12)
    assert ood_auroc(outside, inside).item() == pytest.approx(1 - value, abs=1e-12)


@given(scores, scores, st.sampled_from([0.05, 0.07, 0.5, 0.75, 0.95, 1.0]))
def test_fpr_is_the_first_point_of_the_roc_curve_that_reaches_the_tpr(
    inside: torch.Tensor, outside: torch.Tensor, tpr: float
) -> None:
    truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    fprs, tprs, _ = roc_curve(truth, torch.cat([inside, outside]).numpy(), drop_intermediate=False)
    expected = fprs[np.argmax(tprs >= tpr - 1e-9)]
    assert fpr_at_tpr(inside, outside, tpr).item() == pytest.approx(expected, abs=1e-12)
    assert fpr95(inside, outside) == fpr_at_tpr(inside, outside, 0.95)


def test_two_gaussians_have_the_closed_form() -> None:
    """N(0, 1) against N(d, 1): AUROC = Φ(d/√2), FPR95 = Φ(Φ⁻¹(0.95) − d), within four standard errors at n = 50,000
    (below √(¼/n) = 0.0022 for the first, and twice that for the second, whose threshold is estimated too)."""
    generator, normal = torch.Generator().manual_seed(0), torch.distributions.Normal(0.0, 1.0)
    inside, outside = torch.randn(50_000, generator=generator), 1.5 + torch.randn(50_000, generator=generator)
    auroc = normal.cdf(torch.tensor(1.5 / 2**0.5)).item()
    assert ood_auroc(inside, outside).item() == pytest.approx(auroc, abs=0.009)
    fpr = normal.cdf(normal.icdf(torch.tensor(0.95)) - 1.5).item()
    assert fpr95(inside, outside).item() == pytest.approx(fpr, abs=0.018)


def test_seven_per_cent_of_a_hundred_are_seven() -> None:
    """0.07 · 100 is 7.000000000000001 in floating point, which must not ask for an eighth."""
    outside = torch.arange(100.0)
    assert fpr_at_tpr(torch.tensor([91.5, 92.5, 93.5]), outside, tpr=0.07).item() == pytest.approx(1 / 3)


def test_float64_scores_are_not_rounded_together() -> None:
    inside = torch.tensor([1 + 1e-12], dtype=torch.float64)
    assert ood_auroc(inside, inside + 1e-12) == 1
    assert ood_auroc(inside, inside) == 0.5
    assert ood_auroc(inside, inside - 5e-13) == 0
