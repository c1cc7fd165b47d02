"""Scores of a regression against closed forms."""

from __future__ import annotations

from math import log, pi
from statistics import NormalDist

import pytest
import torch

from byov.evaluation.regressions import Predicted


def test_the_density_of_draws_is_their_mixture() -> None:
    """Two draws ±1 around a target at 0 with τ = 4: ½ (N(1) + N(−1)) = N(1 | 0, ¼)."""
    found = Predicted(torch.tensor([[[1.0]], [[-1.0]]]).double(), torch.tensor([4.0]).double())
    scores = found.scores(torch.zeros(1, 1).double())
    assert scores["log_density"] == pytest.approx(0.5 * log(4 / (2 * pi)) - 2.0)
    assert scores["rmse"] == 0.0
    assert float(found.std) == pytest.approx((1 + 0.25) ** 0.5)
    assert scores["coverage95"] == 1.0


@pytest.mark.parametrize(("spread", "tau"), [(0.0, 4.0), (2.0, 0.25), (3.0, 100.0)])
def test_coverage_is_that_of_a_gaussian(spread: float, tau: float) -> None:
    """Targets at the 1000 quantiles of N(5, spread² + 1/τ), which draws at 5 ± spread with noise 1/τ predict.

    Of these, 950 lie within the 95 % interval; 90 %'s quantile would count 900, and one without the noise or without
    the draws' variance another number. A second target that varies half as much lies within its intervals.
    """
    std = (spread**2 + 1 / tau) ** 0.5
    quantiles = torch.tensor([NormalDist(5.0, std).inv_cdf((i + 0.5) / 1000) for i in range(1000)]).double()
    draws = torch.tensor([5.0 - spread, 5.0 + spread]).double()[:, None, None].expand(2, 1000, 1)
    assert Predicted(draws, torch.tensor([tau]).double()).scores(quantiles[:, None])["coverage95"] == 0.95
    both = Predicted(draws.expand(2, 1000, 2), torch.tensor([tau, tau]).double())
    two = torch.stack([quantiles, 5.0 + 0.5 * (quantiles - 5.0)], 1)
    assert both.scores(two)["coverage95"] == 0.975
