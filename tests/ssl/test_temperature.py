"""A temperature is found again, improves the likelihood, and leaves the epistemic part of the uncertainty alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from test_probe import NORMALISE, SETTINGS, digits, network, posterior
from torch import Generator, Tensor

from byov.metrics.functional import nll
from byov.ssl.probe import Probe, evaluate_probe
from byov.ssl.temperature import RANGE, fit_temperature, folds, tempered


def drawn(temperature: float, n: int = 20_000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Probabilities, and labels that are drawn from them at a temperature."""
    generator = Generator().manual_seed(seed)
    probs = (2 * torch.randn(n, 5, generator=generator, dtype=torch.float64)).softmax(1)
    return probs, torch.multinomial(tempered(probs, temperature), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("temperature", [0.5, 0.8, 1.0, 1.7])
def test_it_is_found_again(temperature: float) -> None:
    """From 20,000 labels to 3 % (its standard error is about 1 %)."""
    assert fit_temperature(*drawn(temperature)) == pytest.approx(temperature, rel=0.03)


@given(st.floats(0.3, 3.0), st.integers(0, 10_000))
def test_it_is_the_minimum_that_scipy_finds(temperature: float, seed: int) -> None:
    probs, labels = drawn(temperature, 60, seed)
    found = fit_temperature(probs, labels)
    score = lambda t: nll(tempered(probs, t), labels).item()  # noqa: E731
    best = minimize_scalar(score, bounds=(1 / RANGE, RANGE), method="bounded", options={"xatol": 1e-6})
    assert 1 / RANGE <= found <= RANGE
    assert score(found) <= best.fun + 1e-6


def test_labels_that_are_all_right_or_all_wrong_do_not_ask_for_zero_or_infinity() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    assert fit_temperature(probs, torch.tensor([0, 1])) == pytest.approx(1 / RANGE, rel=1e-6)
    assert fit_temperature(probs, torch.tensor([1, 0])) == pytest.approx(RANGE, rel=1e-6)
    assert tempered(torch.tensor([[1.0, 0.0]]), 0.5).tolist() == [[1.0, 0.0]]
    with pytest.raises(ValueError, match=r"^A temperature needs .*\.$"):
        fit_temperature(probs, torch.tensor([0]))


def test_a_probe_is_tempered_at_mu_and_under_draws() -> None:
    # Mixed: later digits are by other hands, for which a temperature is another one.
    whole = torch.cat([part.images for part in digits()]), torch.cat([part.labels for part in digits()])  # type: ignore[misc]
    order = torch.randperm(900, generator=Generator().manual_seed(1))
    train, test = ((whole[0][at], whole[1][at]) for at in (order[:500], order[500:]))
    settings, model = replace(SETTINGS, temper=400), posterior(-7.0)
    plain = evaluate_probe(model, train, test, SETTINGS, **NORMALISE)
    found = evaluate_probe(model, train, test, settings, **NORMALISE)
    assert plain.probe.temperatures == {}
    for name, reading in (("linear", "at_mean"), ("linear_draws", "under_draws")):
        temperature, before, after = found.probe.temperatures[reading], plain.predictions[name], found.predictions[name]
        assert temperature != 1.0
        torch.testing.assert_close(after.mean, tempered(before.mean, temperature))
        torch.testing.assert_close(after.expected_entropy + after.mutual_information, after.entropy)
        assert (after.mutual_information <= before.mutual_information + 1e-6).all()
        assert found.scores[name].top1 == plain.scores[name].top1
    # An average over draws says too little: under them it is sharpened, and images it has not seen become more likely.
    assert found.probe.temperatures["under_draws"] < 0.95
    assert found.scores["linear_draws"].nll < plain.scores["linear_draws"].nll
    assert found.scores["linear_draws"].ece < plain.scores["linear_draws"].ece
    for name in ("knn", "knn_draws"):
        assert torch.equal(found.predictions[name].mean, plain.predictions[name].mean)


def test_a_plain_encoder_has_one_at_its_weights() -> None:
    (train, test), settings = digits(), replace(SETTINGS, temper=50)
    assert train.labels is not None
    probe = Probe.fit(network(), train.images, train.labels, 10, settings, **NORMALISE)
    assert list(probe.temperatures) == ["at_mean"]
    assert probe.predict(test.images[:5]).mean.sum(1).tolist() == pytest.approx([1.0] * 5)


def test_sorted_and_periodic_labels_give_the_same_as_mixed_ones() -> None:
    """Examples are cut into folds at random, each class alike: the order of a data set says nothing."""
    (train, _), found = digits(), []
    assert train.labels is not None
    by_class = train.labels.argsort(stable=True)
    first = [by_class[train.labels[by_class] == c][:40] for c in range(10)]
    for order in (torch.cat(first), torch.stack(first, 1).flatten()):  # 000…111…, 0123456789012…
        settings = replace(SETTINGS, temper=100, l2=(1e-2,))
        probe = Probe.fit(network(), train.images[order], train.labels[order], 10, settings, **NORMALISE)
        found.append(probe.temperatures["at_mean"])
    assert found[0] == pytest.approx(found[1], rel=0.3)
    assert all(1.1 / RANGE < temperature < 0.9 * RANGE for temperature in found)


@given(st.lists(st.integers(2, 9), min_size=1, max_size=6), st.integers(2, 7), st.integers(0, 99))
def test_folds_have_their_share_of_every_class(sizes: list[int], count: int, seed: int) -> None:
    labels = torch.cat([torch.full((size,), c) for c, size in enumerate(sizes)])
    fold = folds(labels, count, seed)
    used = min(count, *sizes, 99)
    assert set(fold.tolist()) == set(range(used))
    for c, size in enumerate(sizes):
        shares = fold[labels == c].bincount(minlength=used)
        assert shares.sum() == size
        assert shares.max() - shares.min() <= 1


def test_a_class_of_one_example_leaves_it_at_one() -> None:
    (train, _) = digits()
    assert train.labels is not None
    few = torch.cat([(train.labels == 0).nonzero()[:30, 0], (train.labels == 1).nonzero()[:1, 0]])
    settings = replace(SETTINGS, k=2, temper=9, l2=(1e-2,))
    with pytest.warns(UserWarning, match="single example"):
        probe = Probe.fit(network(), train.images[few], train.labels[few], 10, settings, **NORMALISE)
    assert probe.temperatures == {"at_mean": 1.0}
    with pytest.raises(ValueError, match=r"^A temperature is fitted on 0 examples or more, not -1\.$"):
        replace(SETTINGS, temper=-1)
