"""Errors by resampling: those of closed forms, paired, and the scores themselves where every image is drawn once."""

from __future__ import annotations

import pytest
import torch
from torch import Generator

from byov.evaluation.resampling import RESAMPLES, Resamples, error
from byov.evaluation.scores import main_scores


def test_a_resample_s_scores_are_those_of_its_images() -> None:
    generator = Generator().manual_seed(0)
    probs, labels = torch.randn(200, 4, generator=generator).softmax(1), torch.randint(4, (200,), generator=generator)
    resamples = Resamples(200, seed=1, count=5)
    assert resamples.counts.sum(1).tolist() == [200.0] * 5
    found = resamples.scores(probs, labels, bins=10)
    for b, counts in enumerate(resamples.counts):
        drawn = torch.arange(200).repeat_interleave(counts.long())
        for name, value in main_scores(probs[drawn], labels[drawn], bins=10).items():
            assert found[name][b].item() == pytest.approx(value, abs=1e-5)
    assert torch.equal(Resamples(200, seed=1, count=5).counts, resamples.counts)
    assert not torch.equal(Resamples(200, seed=2, count=5).counts, resamples.counts)


def test_errors_are_those_of_a_mean_and_differences_are_paired() -> None:
    labels = torch.zeros(400, dtype=torch.int64)
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])[(torch.arange(400) % 4 == 0).long()]  # three of four are right
    other = probs.clone()
    other[1] = probs[0]  # one image more is wrong
    resamples = Resamples(400)
    first, second = (resamples.scores(p, labels)["top1"] for p in (probs, other))
    assert len(first) == RESAMPLES
    # √(p(1−p)/n), and of the difference of one image √(1/n · (1 − 1/n)/n); 1,000 resamples know it to 2.2 %
    assert error(first) == pytest.approx((0.75 * 0.25 / 400) ** 0.5, rel=0.1)
    assert error(first - second) == pytest.approx(1 / 400, rel=0.15)
