"""R@1 and R-AUROC against scikit-learn's neighbours and areas, closed forms, and every refusal."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from byov import metrics
from byov.metrics import functional as F
from byov.metrics.functional import retrieval


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
    whole = retrieval.retrieval_errors(embeddings, labels)
    monkeypatch.setattr(retrieval, "CHUNK", 7)
    assert torch.equal(retrieval.retrieval_errors(embeddings, labels), whole)


def test_only_the_direction_counts_and_only_the_order_of_uncertainty() -> None:
    uncertainty, embeddings, labels = problem(1, 60, 4, 3)
    lengths = torch.rand(60, 1) + 0.5
    assert F.recall_at_1(lengths * embeddings, labels) == F.recall_at_1(embeddings, labels)
    assert F.r_auroc(uncertainty.exp(), embeddings, labels) == F.r_auroc(uncertainty, embeddings, labels)
    assert F.r_auroc(-uncertainty, embeddings, labels).item() == pytest.approx(
        1 - F.r_auroc(uncertainty, embeddings, labels).item()
    )


def test_what_knows_all_reads_1_and_what_knows_nothing_a_half() -> None:
    _, embeddings, labels = problem(2, 80, 4, 3)
    wrong = torch.from_numpy(~reference(embeddings, labels)).double()
    assert F.r_auroc(wrong, embeddings, labels).item() == 1
    assert F.r_auroc(-wrong, embeddings, labels).item() == 0
    assert F.r_auroc(torch.ones(80), embeddings, labels).item() == 0.5


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_every_integer_dtype_is_a_label(dtype: torch.dtype) -> None:
    _, embeddings, labels = problem(3, 30, 3, 3)
    assert F.recall_at_1(embeddings, labels.to(dtype)) == F.recall_at_1(embeddings, labels)


PAIR, TWO = torch.eye(2), torch.tensor([0, 1])
REFUSALS: list[tuple[Callable[[], Any], str]] = [
    (lambda: F.recall_at_1(torch.ones(3), TWO), r"embeddings must have shape \(N, D\), got \(3,\)"),
    (lambda: F.recall_at_1(PAIR * float("nan"), TWO), "embeddings must be finite"),
    (lambda: F.recall_at_1(PAIR[:1], TWO[:1]), "needs at least two samples, got 1"),
    (lambda: F.recall_at_1(PAIR[:0], TWO[:0]), "embeddings is empty"),
    (lambda: F.recall_at_1(PAIR, torch.tensor([0, 1, 1])), r"labels must have shape \(2,\), got \(3,\)"),
    (lambda: F.recall_at_1(PAIR, TWO.float()), "labels must have an integer dtype"),
    (lambda: F.r_auroc(torch.ones(3), PAIR, TWO), "one entry for each of the 2 samples, got 3"),
    (lambda: F.r_auroc(torch.ones(2) * float("inf"), PAIR, TWO), "uncertainty must be finite"),
    (lambda: F.r_auroc(torch.ones(2), PAIR, TWO), "but all 2 are wrong"),
    (lambda: F.r_auroc(torch.ones(2), PAIR, torch.tensor([1, 1])), "but all 2 are right"),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSALS, ids=[sentence for _, sentence in REFUSALS])
def test_refusals(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()


def test_embeddings_of_two_widths_are_refused() -> None:
    metric = metrics.RecallAt1()
    metric.update(torch.eye(2), TWO)
    metric.update(torch.eye(4), torch.arange(4))
    with pytest.raises(ValueError, match="must have one width, got 2, 4"):
        metric.compute()
