"""Conformal sets keep their promise, by simulation, and their ranks are the formula's."""

from __future__ import annotations

from math import sqrt
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

import byov
from byov.posthoc.conformal import class_scores, quantile

N, UNSEEN, TIMES = 99, 500, 60
TOLERANCE = 4 * sqrt(0.1 * 0.9 / TIMES * (1 / (N + 1) + 1 / UNSEEN))
"""Four standard errors of the coverage averaged over the simulations: a calibration's own varies by 1/(n + 1), too."""


class Returned(nn.Module):
    """A classifier, or a regression, that returns its input: the simulation decides what it says."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def classes(n: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Logits that are wrong by a factor of 3, and labels."""
    logits = torch.randn(n, 5, generator=generator)
    return 3 * logits, torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize(("score", "most"), [("probability", 0.01), ("aps", 1.0)])
def test_sets_cover_what_they_promise(score: str, most: float) -> None:
    """At least 90 %, and with 1 − p hardly more: n = 99 makes it exactly 90 % on average over calibrations."""
    generator, covered, sizes = Generator().manual_seed(0), [], []
    for _ in range(TIMES):
        promise = byov.conformal(Returned(), classes(N, generator), 0.9, score)  # type: ignore[arg-type]
        x, y = classes(UNSEEN, generator)
        sets = promise(byov.predict(Returned(), x))
        assert sets.shape == (UNSEEN, 5)
        covered.append(sets.gather(1, y[:, None]).float().mean())
        sizes.append(sets.sum(1).min())
    coverage = float(torch.stack(covered).mean())
    assert 0.9 - TOLERANCE < coverage < 0.9 + most + TOLERANCE
    assert score == "probability" or min(sizes) > 0  # "aps" is never empty


@pytest.mark.parametrize("relative", [False, True])
def test_intervals_cover_what_they_promise(relative: bool) -> None:
    """In units of the predictive std where there is one: noise that the network knows makes wide intervals."""
    generator, covered = Generator().manual_seed(1), []

    def sample(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 1, generator=generator)
        noise = x.exp() * torch.randn(n, 1, generator=generator)
        return (torch.cat([x, 2 * x], 1) if relative else x), x + 2 * noise

    task = "gaussian" if relative else "regression"
    for _ in range(TIMES):
        promise = byov.conformal(Returned(), sample(N), task=task)
        x, y = sample(UNSEEN)
        lower, upper = promise(byov.predict(Returned(), x, task=task))
        covered.append(((lower <= y) & (y <= upper)).float().mean())
        widths = upper - lower
    assert promise.score == ("relative" if relative else "absolute")
    assert bool((widths.std() > 0.1) == relative)
    assert abs(float(torch.stack(covered).mean()) - 0.9) < TOLERANCE


def test_each_output_of_a_regression_has_its_own_threshold_and_a_posterior_its_own_draws() -> None:
    net = nn.Linear(3, 2)
    x = torch.randn(50, 3)
    y = net(x).detach() + torch.tensor([0.1, 10.0]) * torch.randn(50, 2)
    promise = byov.conformal(byov.bayesianize(net, byov.Gaussian(-4.0)), (x, y), task="regression", precision=4.0)
    assert promise.score == "relative"
    assert promise.threshold[1] > 20 * promise.threshold[0]


def test_the_rank_is_of_one_more_than_there_are() -> None:
    for n, coverage, rank in ((9, 0.9, 9), (10, 0.9, 10), (19, 0.9, 18), (99, 0.95, 95), (3, 0.5, 2)):
        assert float(quantile(torch.randperm(n).float(), coverage)) == rank - 1
    probs = torch.tensor([[0.2, 0.5, 0.3]])
    torch.testing.assert_close(class_scores(probs, "aps"), torch.tensor([[0.8, 0.0, 0.5]]))
    torch.testing.assert_close(class_scores(probs, "probability"), torch.tensor([[0.8, 0.5, 0.7]]))


def test_tokens_and_temperatures() -> None:
    generator = Generator().manual_seed(0)
    x, y = classes(60, generator)
    warm = byov.Temperature(3.0)
    promise = byov.conformal(Returned(), (x.view(6, 10, 5), y.view(6, 10)), task="token", temperature=warm)
    sets = promise(byov.predict(Returned(), x.view(6, 10, 5), task="token", temperature=warm))
    assert torch.equal(sets.flatten(0, 1), byov.conformal(Returned(), (x / 3, y))(byov.predict(Returned(), x / 3)))


@pytest.mark.parametrize("coverage", [torch.tensor(0.9), torch.tensor(0.9).numpy()], ids=["tensor", "array"])
def test_a_coverage_may_be_a_tensor_s_number(coverage: Any) -> None:
    found = byov.conformal(Returned(), (X, Y), coverage)
    assert found.threshold == byov.conformal(Returned(), (X, Y), 0.9).threshold


X, Y = torch.randn(20, 3), torch.randint(3, (20,))
