"""R@1 and R-AUROC against scikit-learn's neighbours and areas, closed forms, and every refusal."""

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
from byov.metrics.functional import uncertainty as retrieval


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


def test_embeddings_of_two_widths_are_refused() -> None:
    metric = metrics.RecallAt1()
    metric.update(torch.eye(2), torch.arange(2))
    metric.update(torch.eye(4), torch.arange(4))
    with pytest.raises(ValueError, match="must have one width, got 2, 4"):
        metric.compute()
