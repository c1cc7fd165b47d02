"""Exploration's numbers: closed forms, independent references, and statistics with stated tolerances."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal, spearmanr
from torch import Generator, Tensor

from byov.evaluation import (
    LayerHistory,
    alignment,
    convergence,
    gallery,
    human_agreement,
    human_entropy,
    layer_history,
    predictive_std,
)
from byov.evaluation.alignment import gaussian_fit
from byov.evaluation.layers import aggregation, per_epoch
from byov.posterior.random import stream


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64)


# Layers


def history(run: Path, records: list[tuple[int, float]]) -> Path:
    """Write the records of two layers, of which σ at each step is given."""
    lines = []
    for step, s in records:
        layers = {"encoder.0": [6, s, 2 * s, 1 / s, None], "projector.0": [4, s, s, 3, 4]}
        lines.append(json.dumps({"step": step, "epoch": step / 10, "layers": layers}) + "\n")
    (run / "layers.jsonl").write_text("".join(lines))
    return run


def test_a_history_is_what_the_run_recorded(tmp_path: Path) -> None:
    found = layer_history(history(tmp_path, [(0, 0.5), (20, 0.25)]))
    assert found == LayerHistory(
        steps=[0, 20],
        epochs=[0.0, 2.0],
        layers=["encoder.0", "projector.0"],
        weights=[6, 4],
        sigma_mean=[[0.5, 0.25], [0.5, 0.25]],
        sigma_max=[[1.0, 0.5], [0.5, 0.25]],
        snr_mean=[[2.0, 4.0], [3, 3]],
        snr_max=[[None, None], [4, 4]],
    )
    assert LayerHistory(**json.loads(json.dumps(asdict(found)))) == found
    assert layer_history(tmp_path / "checkpoint.safetensors") == found


def test_an_epoch_is_the_mean_of_means_and_the_maximum_of_maxima(tmp_path: Path) -> None:
    """Records at epochs 0, 0.4, 1, 1.2, 2: the start alone, then two records for each epoch (BYOV's footnote 5)."""
    sigmas = [(0, 0.5), (4, 0.4), (10, 0.2), (12, 0.1), (20, 0.3)]
    found = per_epoch(layer_history(history(tmp_path, sigmas)))
    assert (found.steps, found.epochs, found.records) == ([0, 10, 20], [0.0, 1.0, 2.0], [1, 2, 2])
    assert found.sigma_mean[0] == pytest.approx([0.5, 0.3, 0.2])
    assert found.sigma_max[0] == pytest.approx([1.0, 0.8, 0.6])
    assert found.snr_mean[0] == pytest.approx([2.0, (1 / 0.4 + 1 / 0.2) / 2, (1 / 0.1 + 1 / 0.3) / 2])
    assert found.snr_max == [[None] * 3, [4, 4, 4]]
    assert LayerHistory(**json.loads(json.dumps(asdict(found)))) == found
    assert "aggregates the 2 recorded steps of its epoch" in aggregation([found])
    few = per_epoch(layer_history(history(tmp_path, [(0, 0.5), (25, 0.4), (50, 0.2)])))
    assert (few.epochs, few.records) == ([0.0, 3.0, 5.0], [1, 1, 1])  # fewer records than epochs
    assert few.sigma_mean == layer_history(tmp_path).sigma_mean
    assert "fewer steps than it has epochs" in aggregation([few])
    assert "one step of its epoch" in aggregation([per_epoch(layer_history(history(tmp_path, [(0, 0.5), (10, 0.4)])))])


def test_a_run_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no record"):
        layer_history(history(tmp_path, []))


# Convergence


def test_convergence_against_a_plain_loop() -> None:
    values = (normal(1, 5, 3, seed=1) + 0.5 * normal(7, 5, 3)).softmax(2)
    found = convergence(values, counts=[1, 3, 7], bootstraps=6, seed=5)
    picked = torch.randint(7, (6, 7), generator=Generator().manual_seed(stream(5, 0)))
    classes = values.mean(0).argmax(1)
    for row, count in enumerate([1, 3, 7]):
        means = torch.stack([values[picked[b, :count]].mean(0)[range(5), classes] for b in range(6)])
        stds = torch.stack([values[picked[b, :count]].std(0, correction=0)[range(5), classes] for b in range(6)])
        assert found.mean[row] == pytest.approx(means.mean().item(), abs=1e-12)
        assert found.mean_spread[row] == pytest.approx(means.mean(1).std().item(), abs=1e-12)
        assert found.std[row] == pytest.approx(stds.mean().item(), abs=1e-7)
        assert found.std_spread[row] == pytest.approx(stds.mean(1).std().item(), abs=1e-7)
        assert found.image_spread[row] == pytest.approx(means.std(0).mean().item(), abs=1e-12)


# Alignment


def correlated(count: int = 4000, rho: float = 0.6) -> tuple[Tensor, Tensor]:
    a, b = normal(count, seed=1), normal(count, seed=2)
    return 0.2 + 0.02 * a, 0.3 + 0.05 * (rho * a + math.sqrt(1 - rho**2) * b)


def test_a_gaussian_cloud_is_found_to_be_one() -> None:
    x, y = correlated()
    found = alignment(x, y)
    assert found.pearson == pytest.approx(0.6, abs=0.04)  # 4 errors of (1 − ρ²)/√n
    assert found.pearson_error == pytest.approx((1 - 0.36) / math.sqrt(4000), rel=0.25)
    assert found.spearman == pytest.approx(6 / math.pi * math.asin(0.3), abs=0.04)
    assert found.fit.coverage["0.5"] == pytest.approx(0.5, abs=0.032)
    assert found.fit.coverage["0.95"] == pytest.approx(0.95, abs=0.014)
    assert found.fit.skewness == pytest.approx(0.0, abs=0.03)
    assert found.fit.kurtosis == pytest.approx(8.0, abs=0.5)
    assert found.fit.mean == pytest.approx([0.2, 0.3], abs=4e-3)
    peak = max(map(max, found.kde.density))
    truth = multivariate_normal(found.fit.mean, found.fit.covariance).pdf(found.fit.mean)
    assert peak == pytest.approx(truth, rel=0.15)


def test_what_is_lognormal_is_a_gaussian_only_in_logarithms() -> None:
    x, y = correlated()
    x, y = 10 ** (40 * (x - 0.2) - 3), 10 ** (16 * (y - 0.3) - 2)
    raw, log = alignment(x, y), alignment(x, y, log=True)
    assert raw.fit.kurtosis > 20
    assert log.fit.kurtosis == pytest.approx(8.0, abs=0.5)
    assert log.pearson == pytest.approx(0.6, abs=0.04)
    assert raw.spearman == pytest.approx(log.spearman, abs=1e-9)


def test_mardia_against_its_definition() -> None:
    points = np.stack([x.numpy() for x in correlated(200)], axis=1) ** 2
    found = gaussian_fit(points[:, 0], points[:, 1])
    centred = points - points.mean(0)
    gram = centred @ np.linalg.inv(np.cov(points.T, bias=True)) @ centred.T
    assert found.skewness == pytest.approx((gram**3).mean(), rel=1e-6)
    assert found.kurtosis == pytest.approx((np.diag(gram) ** 2).mean(), rel=1e-6)


def test_the_predictive_std_of_an_image_is_the_root_of_the_classes_variances() -> None:
    assert predictive_std(torch.tensor([[0.3, 0.4], [0.0, 0.0]])).tolist() == pytest.approx([0.5, 0.0])


# Gallery


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 10_000))
def test_a_gallery_shows_both_ends_in_order(count: int, images: int, seed: int) -> None:
    generator = Generator().manual_seed(seed)
    pixels = torch.randint(256, (images, 3, 2, 2), dtype=torch.uint8, generator=generator)
    uncertainty = torch.randint(5, (images,), generator=generator) / 4  # with ties
    probs = torch.rand(images, 3, generator=generator).softmax(1)
    labels = torch.randint(3, (images,), generator=generator)
    found = gallery(pixels, labels, "abc", probs, uncertainty, count=count)
    order = sorted(range(images), key=lambda i: (float(uncertainty[i]), i))
    assert [shown.index for shown in found.most_certain] == order[:count]
    assert [shown.uncertainty for shown in found.least_certain] == sorted(uncertainty.tolist(), reverse=True)[:count]
    right, tenth = (probs.argmax(1) == labels).double()[order], max(1, images // 10)
    assert (found.accuracy_most_certain, found.accuracy_least_certain) == (right[:tenth].mean(), right[-tenth:].mean())
    for shown in found.most_certain + found.least_certain:
        assert torch.equal(shown.array(), pixels[shown.index])
        assert shown.label == "abc"[int(labels[shown.index])]
        assert shown.predicted == "abc"[int(probs[shown.index].argmax())]


# People


def test_the_entropy_of_votes() -> None:
    assert human_entropy(torch.tensor([[50, 0], [25, 25]])).tolist() == pytest.approx([0.0, math.log(2)])


def test_agreement_with_people_is_one_where_they_are_the_model() -> None:
    counts = torch.randint(1, 50, (300, 4), generator=Generator().manual_seed(0))
    probs = counts.double() / counts.sum(1, keepdim=True)
    entropy = human_entropy(counts)
    labels = counts.argmax(1)
    found = human_agreement({"entropy": entropy, "std": -entropy, "chance": normal(300)}, probs, labels, counts, 60)
    assert found.spearman["entropy"] == pytest.approx([1.0, 0.0], abs=1e-9)
    assert found.spearman["std"][0] == pytest.approx(-1.0)
    assert abs(found.spearman["chance"][0]) < 4 / math.sqrt(300)
    assert found.spearman["chance"][1] == pytest.approx(1 / math.sqrt(300), rel=0.4)
    assert found.accuracy == 1.0
    assert found.cross_entropy == pytest.approx(found.human_entropy)
    assert found.curve["entropy"] == sorted(found.curve["entropy"])
    assert sum(found.curve["entropy"]) / 10 == pytest.approx(found.human_entropy)


def test_contested_images_are_told_from_the_others() -> None:
    counts = torch.tensor([[50, 0]] * 20 + [[40, 10]] * 20)  # a fifth disagrees: contested
    uncertainty = torch.arange(40.0)
    labels, probs = torch.zeros(40).long(), torch.full((40, 2), 0.5)
    found = human_agreement({"entropy": uncertainty}, probs, labels, counts, bootstraps=20)
    assert found.contested == 0.5
    assert found.auroc == {"entropy": 1.0}
    assert found.spearman["entropy"][0] == pytest.approx(spearmanr(uncertainty, counts[:, 1]).statistic)
    contested = torch.tensor([[40, 10]] * 20 + [[30, 20]] * 20)
    assert human_agreement({"entropy": uncertainty}, probs, labels, contested, bootstraps=20).auroc == {"entropy": None}


# What none of them takes


def people(uncertainty: Tensor, votes: Tensor) -> object:
    return human_agreement({"entropy": uncertainty}, torch.rand(4, 3), torch.zeros(4).long(), votes)


def shown(images: Tensor, count: int) -> object:
    return gallery(images, torch.zeros(3).long(), "a", torch.ones(count, 1), torch.ones(3))


NINE, PICTURES = torch.rand(9), torch.zeros(3, 1, 2, 2, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("words", "call"),
    {
        "has no layers.jsonl": lambda: layer_history(Path(__file__).parent),
        "Convergence needs class probabilities": lambda: convergence(torch.rand(3, 4)),
        "Convergence needs at least two draws": lambda: convergence(torch.rand(1, 4, 2)),
        "needs at least two draws, two bootstraps": lambda: convergence(torch.rand(3, 4, 2), bootstraps=1),
        "numbers of draws of at least 1": lambda: convergence(torch.rand(3, 4, 2), counts=[0]),
        "two numbers for each": lambda: alignment(NINE, torch.rand(8)),
        "at least 8": lambda: alignment(torch.rand(3), torch.rand(3)),
        "same std": lambda: alignment(NINE, torch.zeros(9)),
        "above 0": lambda: alignment(NINE, torch.linspace(0, 1, 9), log=True),
        "needs finite numbers": lambda: alignment(torch.full((9,), math.nan), NINE),
        "one label, prediction and uncertainty per image": lambda: shown(PICTURES, 2),
        "uint8": lambda: shown(PICTURES.float(), 3),
        "at least one vote per image": lambda: human_entropy(torch.tensor([[0, 0]])),
        "do not match": lambda: people(torch.rand(4), torch.ones(5, 3)),
        "one finite number": lambda: people(torch.rand(5), torch.ones(4, 3)),
        "it has no rank correlation": lambda: people(torch.rand(4), torch.ones(4, 3)),
    }.items(),
)
def test_refusals(words: str, call: Callable[[], object]) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        call()
