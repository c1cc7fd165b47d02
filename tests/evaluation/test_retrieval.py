"""R-AUROC of a run by measure: against the metrics themselves, with errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Generator

import byov
from byov.evaluation.retrieval import detection, retrieval, run_measures
from byov.metrics import functional as F
from byov.runs import Reading, open_run
from byov.runs.run import Pretrained

READING = Reading(samples=3, limit=60, train_limit=80)
DRAWN = {f"{what}_{stage}" for what in ("spread", "variance") for stage in ("encoder", "projector", "predictor")}
AUGMENTED = {f"augmented_spread_{stage}" for stage in ("encoder", "projector", "predictor")}


def problem(count: int = 200) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = Generator().manual_seed(0)
    labels = torch.randint(3, (count,), generator=generator)
    embeddings = torch.randn(count, 4, generator=generator) + 1.5 * torch.eye(3, 4)[labels]
    return torch.rand(count, generator=generator), embeddings, labels


def test_it_is_the_metrics_with_their_errors() -> None:
    uncertainty, embeddings, labels = problem()
    right = F.recall_at_1(embeddings, labels)
    found = retrieval({"spread_encoder": uncertainty}, embeddings, labels, bootstraps=300)
    value, error = found.r_auroc["spread_encoder"] or (None, None)
    assert value == pytest.approx(F.r_auroc(uncertainty, embeddings, labels).item())
    assert found.r_at_1 == pytest.approx([right.item(), (right * (1 - right) / 200).sqrt().item()])
    # Hanley and McNeil's error of an AUROC near a half: √((n₁ + n₂ + 1) / (12 n₁ n₂))
    wrong = round(200 * (1 - right.item()))
    assert error == pytest.approx((201 / (12 * wrong * (200 - wrong))) ** 0.5, rel=0.2)
    assert np.mean(found.curve["spread_encoder"]) == pytest.approx(right.item())
    assert len(found.curve["spread_encoder"]) == 10


def test_a_network_that_is_always_right_has_no_r_auroc() -> None:
    embeddings = torch.eye(2).repeat_interleave(8, 0)
    found = retrieval({"negative_norm": torch.rand(16)}, embeddings, torch.arange(2).repeat_interleave(8), 5)
    assert found.r_at_1 == [1.0, 0.0]
    assert found.r_auroc == {"negative_norm": None}


def test_detection_is_the_auroc_of_what_both_have() -> None:
    known, other = {"a": torch.rand(30), "b": torch.rand(30)}, {"a": torch.rand(40) + 0.3}
    found = detection(known, other, bootstraps=20)
    assert list(found) == ["a"]
    assert (found["a"] or [0])[0] == pytest.approx(F.ood_auroc(known["a"], other["a"]).item())


def test_a_run_is_read_by_draws_and_by_augmentations(runs: Path) -> None:
    byov_run, byol_run = (open_run(runs / name, READING) for name in ("byov", "byol"))
    assert isinstance(byov_run, Pretrained)
    assert isinstance(byol_run, Pretrained)
    embeddings, measures = run_measures(byov_run, byov_run.images.images)
    assert set(measures) == DRAWN | AUGMENTED | {"negative_norm"}
    torch.testing.assert_close(
        embeddings, byov.features(byov_run.module, byov_run.images.images, **byov_run.normalisation)
    )
    _, again = run_measures(byov_run, byov_run.images.images, augmented=False)
    assert set(again) == DRAWN | {"negative_norm"}
    assert all(torch.equal(measures[name], again[name]) for name in again)
    assert set(run_measures(byol_run, byol_run.images.images, augmented=False)[1]) == AUGMENTED | {"negative_norm"}
