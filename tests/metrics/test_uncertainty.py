"""Entropies against scipy, detection and retrieval against scikit-learn, risk–coverage curves against brute force."""

from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from byov import metrics
from byov.metrics import functional as F
from byov.metrics.functional import uncertainty

from .inputs import problems, random_problem

scores = st.lists(st.integers(0, 12), min_size=1, max_size=60).map(lambda xs: torch.tensor(xs) / 4)


@given(problems())
def test_entropy_matches_scipy(problem: tuple[Tensor, Tensor]) -> None:
    probs, _ = problem
    assert F.entropy(probs).numpy() == pytest.approx(scipy_entropy(probs.numpy(), axis=1), abs=1e-12)


def test_total_is_aleatoric_plus_epistemic() -> None:
    draws = torch.stack([random_problem(seed, 20, 4)[0] for seed in range(7)])
    aleatoric = np.mean([scipy_entropy(draw.numpy(), axis=1) for draw in draws], axis=0)
    total = scipy_entropy(draws.mean(0).numpy(), axis=1)
    assert F.mutual_information(draws).numpy() == pytest.approx(total - aleatoric, abs=1e-12)
    agreeing = F.mutual_information(draws[0].expand(5, 20, 4))
    assert agreeing.numpy() == pytest.approx(np.zeros(20), abs=1e-12)
    assert (agreeing >= 0).all()


@given(scores, scores)
def test_auroc_matches_scikit_learn(inside: Tensor, outside: Tensor) -> None:
    value = F.ood_auroc(inside, outside).item()
    truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    assert value == pytest.approx(roc_auc_score(truth, torch.cat([inside, outside]).numpy()), abs=1e-12)
    assert F.ood_auroc(outside, inside).item() == pytest.approx(1 - value, abs=1e-12)


@given(scores, scores, st.sampled_from([0.05, 0.07, 0.5, 0.75, 0.95, 1.0]))
def test_fpr_is_the_first_point_of_the_roc_curve_that_reaches_the_tpr(
    inside: Tensor, outside: Tensor, tpr: float
) -> None:
    truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    fprs, tprs, _ = roc_curve(truth, torch.cat([inside, outside]).numpy(), drop_intermediate=False)
    expected = fprs[np.argmax(tprs >= tpr - 1e-9)]
    assert F.fpr_at_tpr(inside, outside, tpr).item() == pytest.approx(expected, abs=1e-12)
    assert F.fpr95(inside, outside) == F.fpr_at_tpr(inside, outside, 0.95)


def test_seven_per_cent_of_a_hundred_are_seven() -> None:
    """0.07 · 100 is 7.000000000000001 in floating point, which must not ask for an eighth."""
    outside = torch.arange(100.0)
    assert F.fpr_at_tpr(torch.tensor([91.5, 92.5, 93.5]), outside, tpr=0.07).item() == pytest.approx(1 / 3)
    assert F.fpr95(torch.tensor([3.5, 4.5, 5.5]), outside).item() == pytest.approx(1 / 3)  # 5 is the 95th largest


def test_float64_scores_are_not_rounded_together() -> None:
    inside = torch.tensor([1 + 1e-12], dtype=torch.float64)
    assert F.ood_auroc(inside, inside + 1e-12) == 1
    assert F.ood_auroc(inside, inside) == 0.5
    assert F.ood_auroc(inside, inside - 5e-13) == 0


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_ties_are_the_mean_over_all_orders(samples: list[tuple[int, bool]]) -> None:
    uncertainty = torch.tensor([float(u) for u, _ in samples])
    labels = torch.tensor([int(wrong) for _, wrong in samples])
    probs = torch.tensor([[1.0, 0.0]]).expand(len(samples), 2)
    curves = []
    for order in permutations(samples):
        wrong = [w for _, w in sorted(order, key=lambda sample: sample[0])]
        curves.append([sum(wrong[:i]) / i for i in range(1, len(wrong) + 1)])
    expected = torch.tensor(curves, dtype=torch.float64).mean(0)
    curve = F.risk_coverage(probs, labels, uncertainty)
    assert curve.risk.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
    assert curve.coverage.tolist() == pytest.approx([i / len(samples) for i in range(1, len(samples) + 1)])
    assert F.aurc(probs, labels, uncertainty).item() == pytest.approx(expected.mean().item(), abs=1e-12)


def test_without_a_score_the_least_confident_are_set_aside_first() -> None:
    probs, labels = random_problem(0, 300, 4)
    expected = F.risk_coverage(probs, labels, -probs.amax(1))
    assert torch.equal(F.risk_coverage(probs, labels).risk, expected.risk)


def problem(seed: int, samples: int, width: int, classes: int, ties: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (samples,), generator=generator)
    centres = torch.randn(classes, width, generator=generator)
    embeddings = centres[labels] + torch.randn(samples, width, generator=generator)
    uncertainty = torch.rand(samples, generator=generator, dtype=torch.float64)
    return (uncertainty * 4).round() if ties else uncertainty, embeddings, labels


def reference(embeddings: Tensor, labels: Tensor) -> np.ndarray:
    """Whether the nearest other sample by cosine has the same class: scikit-learn's brute force."""
    found = NearestNeighbors(n_neighbors=1, metric="cosine", algorithm="brute").fit(embeddings.double().numpy())
    nearest = found.kneighbors(return_distance=False)[:, 0]  # without arguments: never the sample itself
    return labels.numpy()[nearest] == labels.numpy()


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    samples=st.integers(12, 60),
    width=st.integers(2, 5),
    classes=st.integers(2, 4),
    ties=st.booleans(),
)
def test_both_are_scikit_learns(seed: int, samples: int, width: int, classes: int, ties: bool) -> None:
    uncertainty, embeddings, labels = problem(seed, samples, width, classes, ties)
    right = reference(embeddings, labels)
    assert F.recall_at_1(embeddings, labels).item() == pytest.approx(right.mean())
    if 0 < right.sum() < len(right):
        expected = roc_auc_score(~right, uncertainty.numpy())
        assert F.r_auroc(uncertainty, embeddings, labels).item() == pytest.approx(expected)
    else:
        with pytest.raises(ValueError, match="R-AUROC needs right and wrong neighbours"):
            F.r_auroc(uncertainty, embeddings, labels)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, embeddings, labels = problem(0, 50, 4, 3)
    whole = uncertainty.retrieval_errors(embeddings, labels)
    monkeypatch.setattr(uncertainty, "CHUNK", 7)
    assert torch.equal(uncertainty.retrieval_errors(embeddings, labels), whole)


def test_embeddings_of_two_widths_are_refused() -> None:
    metric = metrics.RecallAt1()
    metric.update(torch.eye(2), torch.arange(2))
    metric.update(torch.eye(4), torch.arange(4))
    with pytest.raises(ValueError, match="must have the same width, got 2, 4"):
        metric.compute()
