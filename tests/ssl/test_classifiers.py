"""The probes' heads against scikit-learn, by hand, and under draws."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Generator, Tensor, nn

import byov.ssl.classifiers
from byov.metrics.functional import nll
from byov.ssl.classifiers import KNN, LinearProbe, linear_probe, neighbours

Labelled = tuple[Tensor, Tensor]


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def objective(probe: LinearProbe, x: Tensor, y: Tensor, l2: float) -> float:
    copy = LinearProbe(**{name: tensor.double() for name, tensor in probe.state_dict().items()})
    return (nn.functional.cross_entropy(copy(x.double()), y) + l2 / 2 * copy.weight.square().sum()).item()


@pytest.mark.parametrize("l2", [1e-1, 1e-3])
def test_linear_is_scikit_learns_optimum(vectors: Labelled, l2: float) -> None:
    """λ = 1/(C·N). scikit-learn's optimum is the same function, and not lower."""
    x, y = vectors
    scaler = StandardScaler().fit(x[:1000].double().numpy())
    reference = LogisticRegression(C=1 / (l2 * 1000), tol=1e-8, max_iter=5000)
    reference.fit(scaler.transform(x[:1000].double().numpy()), y[:1000].numpy())
    probe = linear_probe(x[:1000], y[:1000], l2=l2)
    expected = torch.from_numpy(reference.predict_proba(scaler.transform(x[1000:].double().numpy()))).float()
    torch.testing.assert_close(probe.probabilities(x[1000:]), expected, atol=2e-3, rtol=0)
    weights = torch.from_numpy(reference.coef_).float()
    torch.testing.assert_close(probe.weight, weights, atol=5e-3, rtol=0)
    own = LinearProbe(weights, torch.from_numpy(reference.intercept_).float(), probe.center, probe.scale)
    assert objective(probe, x[:1000], y[:1000], l2) <= objective(own, x[:1000], y[:1000], l2) + 1e-6


def test_a_fit_in_float32_is_near(vectors: Labelled) -> None:
    x, y = vectors
    fine, coarse = (linear_probe(x[:500], y[:500], l2=1e-2, dtype=d) for d in (torch.float64, torch.float32))
    assert objective(coarse, x[:500], y[:500], 1e-2) - objective(fine, x[:500], y[:500], 1e-2) < 1e-5
    torch.testing.assert_close(coarse.probabilities(x[500:]), fine.probabilities(x[500:]), atol=5e-3, rtol=0)


def test_chooses_the_strength_that_generalises(vectors: Labelled) -> None:
    """Labels at random in many dimensions: only the strongest is right. Clean digits: a weak one."""
    x, y = vectors
    assert linear_probe(torch.randn(300, 100, generator=seeded()), y[:300]).l2 == 1.0
    probe = linear_probe(x[:800], y[:800])
    assert 1e-4 <= (probe.l2 or 0) <= 1e-2
    scores = {l2: nll(linear_probe(x[:800], y[:800], l2=l2).probabilities(x[800:]), y[800:]) for l2 in (1.0, 1e-1)}
    assert nll(probe.probabilities(x[800:]), y[800:]) < min(scores.values())


def test_the_last_fit_is_on_all_examples(vectors: Labelled) -> None:
    x, y = vectors
    chosen = linear_probe(x[:400], y[:400], l2=(1.0, 1e-2))
    again = linear_probe(x[:400], y[:400], l2=chosen.l2 or 0.0)
    torch.testing.assert_close(chosen.probabilities(x[400:]), again.probabilities(x[400:]), atol=1e-3, rtol=0)


def test_under_draws_the_average_is_fitted(vectors: Labelled) -> None:
    """The objective is that of the averaged probability, at a point with no slope; equal draws are one draw."""
    x, y = (part[:300] for part in vectors)
    noisy = x + 8 * torch.randn(3, 300, 64, generator=seeded())
    probe = linear_probe(noisy, y, l2=0.01)
    weight, bias = (t.double().requires_grad_() for t in (probe.weight, probe.bias))
    average = ((noisy.double() - probe.center) / probe.scale @ weight.T + bias).softmax(-1).mean(0)
    loss = nn.functional.nll_loss(average.log(), y) + 0.005 * weight.square().sum()
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.abs().max() < 1e-4
    each = linear_probe(noisy.flatten(0, 1), y.repeat(3), l2=0.01)  # what a fit of each draw by itself gives
    theirs = torch.stack([each.probabilities(draw) for draw in noisy]).mean(0)
    assert nll(average.detach().float(), y) < nll(theirs, y) - 0.01
    assert linear_probe(x, y).l2 == linear_probe(x.repeat(3, 1, 1), y).l2
    # At a strength where the tolerance determines the fit: it chooses 1e-6, where rounding decides where it ends.
    once, thrice = (linear_probe(draws, y, l2=0.01) for draws in (x, x.repeat(3, 1, 1)))
    torch.testing.assert_close(once.probabilities(x), thrice.probabilities(x), atol=1e-4, rtol=0)


def test_groups_are_held_out_whole() -> None:
    """Labels that only a group's own mark tells: a weak strength is right within groups, a strong one across them."""
    g, groups = seeded(), torch.arange(300) % 30
    y = torch.randint(5, (30,), generator=g)[groups]
    marks = torch.randn(30, 40, generator=g)[groups] + 0.1 * torch.randn(300, 40, generator=g)
    assert linear_probe(marks, y, holdout=0.3).l2 < 1e-3
    assert linear_probe(marks, y, holdout=0.3, groups=groups).l2 > 1e-2


def test_an_example_is_held_out_under_all_draws() -> None:
    """Labels at random, repeated under draws: a split of rows would see every test example in training."""
    y = torch.randint(5, (200,), generator=seeded(1))
    noise = torch.randn(200, 100, generator=seeded(2))
    assert linear_probe(noise.repeat(4, 1, 1), y).l2 == 1.0
    assert linear_probe(noise.repeat(4, 1), y.repeat(4)).l2 < 1e-2  # what the wrong split would choose


def test_constant_features_do_no_harm(vectors: Labelled) -> None:
    """Digits have pixels that are always 0; one that is constant but for rounding must not become a feature."""
    x, y = vectors
    rounding = 1e3 + 1e-5 * torch.randn(len(x), 1, generator=seeded(), dtype=torch.float64)
    wider = torch.cat([x.double(), rounding], 1)
    assert torch.count_nonzero(x.std(0)) < 64
    plain, wide = linear_probe(x[:500], y[:500], l2=1e-3), linear_probe(wider[:500], y[:500], l2=1e-3)
    assert wide.scale[-1] == 1.0
    torch.testing.assert_close(plain.probabilities(x[500:]), wide.probabilities(wider[500:].float()), atol=1e-3, rtol=0)


def test_linear_is_deterministic_and_plain_tensors(vectors: Labelled) -> None:
    x, y = vectors
    probe, again = (linear_probe(x[:300], y[:300], seed=3) for _ in range(2))
    state = probe.state_dict()
    assert set(state) == {"weight", "bias", "center", "scale"}
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in state.items())
    assert torch.equal(LinearProbe(**state)(x), probe(x))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 25), st.sampled_from([0.07, 0.5, 3.0]), st.integers(1, 5))
def test_knn_is_the_brute_force_sum(seed: int, k: int, temperature: float, classes: int) -> None:
    g = seeded(seed)
    train, test = torch.randn(25, 6, generator=g), torch.randn(9, 6, generator=g)
    labels = torch.randint(classes, (25,), generator=g)
    votes = np.zeros((9, classes))
    for i, x in enumerate(test.double().numpy()):
        cosines = np.array([x @ t / np.linalg.norm(x) / np.linalg.norm(t) for t in train.double().numpy()])
        for j in np.argsort(-cosines)[:k]:
            votes[i, labels[j]] += np.exp(cosines[j] / temperature)
    expected = torch.from_numpy(votes / votes.sum(1, keepdims=True)).float()
    found = KNN(train, labels, k, temperature, classes)(test)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_chunks_and_draws_without_spread_change_nothing(vectors: Labelled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under S draws each example is in the bank S times, and S times as many neighbours are asked."""
    x, y = vectors
    whole = KNN(x[:300], y[:300], k=20)(x[300:400])
    torch.testing.assert_close(KNN(x[:300].repeat(4, 1, 1), y[:300], k=20)(x[300:400]), whole)
    monkeypatch.setattr(byov.ssl.classifiers, "CHUNK_ELEMENTS", 300 * 7)
    torch.testing.assert_close(KNN(x[:300], y[:300], k=20)(x[300:400]), whole)


def test_a_small_temperature_does_not_overflow(vectors: Labelled) -> None:
    """At T → 0 the nearest neighbour decides; exp(1/T) alone would be infinite."""
    x, y = vectors
    found = KNN(x[:500], y[:500], k=10, temperature=1e-3)(x[500:600])
    nearest = nn.functional.normalize(x[500:600]) @ nn.functional.normalize(x[:500]).T
    assert found.isfinite().all()
    assert torch.equal(found.argmax(1), y[nearest.argmax(1)])


@pytest.mark.parametrize("make", [KNN, linear_probe])
@pytest.mark.parametrize(
    ("features", "labels", "classes", "sentence"),
    [
        (torch.randn(20, 3), torch.arange(20) % 4, 2, "do not fit 2 classes"),
        (torch.randn(20, 3), torch.zeros(19, dtype=torch.int64), None, "one for each of 20"),
        (torch.randn(20, 3), torch.zeros(20), None, "whole numbers"),
        (torch.randn(20, 3), torch.full((20,), -1), None, "do not fit"),
        (torch.full((20, 3), torch.nan), torch.arange(20) % 4, None, "finite"),
        (torch.full((20, 3), torch.inf), torch.arange(20) % 4, None, "finite"),
        (torch.zeros(20), torch.arange(20) % 4, None, r"\(N, D\)"),
    ],
)
def test_bad_examples_get_a_sentence(
    make: type[KNN], features: Tensor, labels: Tensor, classes: int | None, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        make(features, labels, classes=classes)


def test_bad_settings_get_a_sentence() -> None:
    x, y = torch.randn(20, 3), torch.arange(20) % 4
    for make, change, sentence in (
        (KNN, {"k": 0}, "k lies between 1 and the 20"),
        (KNN, {"k": 21}, "k lies between 1 and the 20"),
        (KNN, {"k": 5, "temperature": 0.0}, "above 0"),
        (linear_probe, {"l2": 0.0}, "above 0"),
        (linear_probe, {"l2": ()}, "above 0"),
        (linear_probe, {"holdout": 0.0}, "leaves nothing"),
        (linear_probe, {"holdout": 1.0}, "leaves nothing"),
    ):
        with pytest.raises(ValueError, match=sentence):
            make(x, y, **change)  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"weight \(C, D\)"):
        LinearProbe(torch.zeros(3, 4), torch.zeros(4), torch.zeros(4), torch.ones(4))


def test_the_number_of_neighbours_grows_with_the_training_images() -> None:
    """CIFAR's 50,000 have the 200 that others publish; small sets at most a tenth of their images."""
    assert [neighbours(n) for n in (5, 100, 1347, 10_000, 50_000, 1_300_000)] == [1, 10, 20, 40, 200, 200]
    assert (neighbours(1347, 7), neighbours(1347, 1000)) == (7, 134)
