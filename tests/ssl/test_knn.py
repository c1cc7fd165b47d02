"""Weighted nearest neighbours against a loop in numpy and against scikit-learn."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import Generator, Tensor

import byov.ssl.knn
from byov.ssl.knn import KNN, knn


def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)


def brute_force(
    train: np.ndarray, labels: np.ndarray, test: np.ndarray, k: int, temperature: float, classes: int
) -> np.ndarray:
    votes = np.zeros((len(test), classes))
    for i, x in enumerate(test):
        cosines = np.array([x @ t / np.linalg.norm(x) / np.linalg.norm(t) for t in train])
        for j in np.argsort(-cosines)[:k]:
            votes[i, labels[j]] += np.exp(cosines[j] / temperature)
    return votes / votes.sum(1, keepdims=True)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 25), st.sampled_from([0.07, 0.5, 3.0]), st.integers(1, 5))
def test_is_the_brute_force_sum(seed: int, k: int, temperature: float, classes: int) -> None:
    g = Generator().manual_seed(seed)
    train, test = torch.randn(25, 6, generator=g), torch.randn(9, 6, generator=g)
    labels = torch.randint(classes, (25,), generator=g)
    found = knn(train, labels, test, k, temperature, classes)
    expected = brute_force(train.double().numpy(), labels.numpy(), test.double().numpy(), k, temperature, classes)
    torch.testing.assert_close(found, torch.from_numpy(expected).float(), atol=2e-5, rtol=1e-4)


def test_is_scikit_learns_on_digits() -> None:
    (x, y), k, temperature = digits(), 50, 0.1
    reference = KNeighborsClassifier(k, weights=lambda d: np.exp((1 - d) / temperature), metric="cosine")
    reference.fit(x[:1000].double().numpy(), y[:1000].numpy())
    expected = torch.from_numpy(reference.predict_proba(x[1000:].double().numpy())).float()
    found = knn(x[:1000], y[:1000], x[1000:], k, temperature)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)
    assert (found.argmax(1) == y[1000:]).float().mean() > 0.9


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = digits()
    whole = knn(x[:500], y[:500], x[500:600], k=20)
    monkeypatch.setattr(byov.ssl.knn, "CHUNK_ELEMENTS", 500 * 7)
    torch.testing.assert_close(knn(x[:500], y[:500], x[500:600], k=20), whole)


def test_a_small_temperature_does_not_overflow() -> None:
    """At T → 0 the nearest neighbour decides; exp(1/T) alone would be infinite."""
    x, y = digits()
    found = knn(x[:500], y[:500], x[500:600], k=10, temperature=1e-3)
    nearest = torch.nn.functional.normalize(x[500:600]) @ torch.nn.functional.normalize(x[:500]).T
    assert found.isfinite().all()
    assert torch.equal(found.argmax(1), y[nearest.argmax(1)])


def test_draws_without_spread_change_nothing() -> None:
    """Under S draws each example is in the bank S times, and S times as many neighbours are asked."""
    x, y = digits()
    at_mean = KNN(x[:300], y[:300], k=20)
    under_draws = KNN(x[:300].repeat(4, 1, 1), y[:300], k=20)
    torch.testing.assert_close(under_draws.probabilities(x[300:400]), at_mean.probabilities(x[300:400]))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"k": 0}, "k lies between 1 and the 20"),
        ({"k": 21}, "k lies between 1 and the 20"),
        ({"temperature": 0.0}, "above 0"),
        ({"classes": 2}, "do not fit 2 classes"),
        ({"train_labels": torch.zeros(19, dtype=torch.int64)}, "one for each of 20"),
        ({"train_labels": torch.zeros(20)}, "whole numbers"),
        ({"train_labels": torch.full((20,), -1)}, "do not fit"),
        ({"train_features": torch.full((20, 3), torch.nan)}, "finite"),
        ({"train_features": torch.zeros(20)}, r"\(N, D\)"),
    ],
)
def test_bad_input_gets_a_sentence(change: dict[str, object], sentence: str) -> None:
    given = {"train_features": torch.randn(20, 3), "train_labels": torch.arange(20) % 4, "k": 5}
    with pytest.raises(ValueError, match=sentence):
        knn(test_features=torch.randn(2, 3), **(given | change))  # type: ignore[arg-type]
