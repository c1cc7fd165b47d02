"""Probes on digits: better than chance, under draws of their own, with a temperature, the same again for a seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor, nn

import byov
from byov.data.datasets import ImageSet
from byov.metrics.functional import accuracy, calibration_error, mutual_information
from byov.posterior.random import stream
from byov.posthoc.temperature import RANGE, Temperature
from byov.ssl.classifiers import folds
from byov.ssl.features import features, grouped_draws
from byov.ssl.probe import FIT, READ, Probe, ProbeResult, ProbeSettings, Scores, evaluate_probe, fit_heads

Labelled = tuple[Tensor, Tensor]
NORMALISE: dict[str, Any] = {"mean": (0.3,), "std": (0.37,)}
SETTINGS = ProbeSettings(k=20, l2=(1e-1, 1e-2, 1e-3), draws_fit=3, draws_read=4)


@pytest.fixture
def train(digits: Labelled) -> Labelled:
    return digits[0][:500], digits[1][:500]


@pytest.fixture
def test(digits: Labelled) -> Labelled:
    return digits[0][1000:1400], digits[1][1000:1400]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(144, 48)
    )


def posterior(log_var: float = -8.0) -> byov.BayesianModule:
    return byov.bayesianize(network(), byov.Gaussian(log_var=log_var))


RESULTS: list[ProbeResult] = []


@pytest.fixture
def result(train: Labelled, test: Labelled) -> ProbeResult:
    """The probes of one encoder with a posterior, fitted once for all tests."""
    if not RESULTS:
        RESULTS.append(evaluate_probe(posterior(), train, test, SETTINGS, **NORMALISE))
    return RESULTS[0]


def draws_of(what: int) -> Generator:
    return Generator().manual_seed(stream(SETTINGS.seed, what))


def test_probes_beat_chance_and_scores_are_those_of_the_probabilities(result: ProbeResult, test: Labelled) -> None:
    """Chance is 10 %; random convolutions keep most of what a digit is."""
    least = {"linear": 0.8, "knn": 0.7, "linear_draws": 0.6, "knn_draws": 0.6}
    assert set(result.scores) == set(least)
    for name, scores in result.scores.items():
        probs = result.predictions[name].mean
        assert probs.shape == (400, 10)
        assert least[name] < scores.top1 <= scores.top5
        assert scores.top1 == accuracy(probs, test[1]).item()
        assert scores.ece == calibration_error(probs, test[1], bins=15).item()
        parts = scores.uncertainty - scores.resolution + scores.reliability + scores.within_bin
        assert parts == pytest.approx(scores.brier, abs=1e-9)
    assert result.numbers()["linear_draws/ece"] == result.scores["linear_draws"].ece
    few = Scores.of(torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]]), torch.tensor([0, 1]))
    assert (few.top1, few.top5) == (0.5, 1.0)  # of three classes


def test_a_head_read_under_draws_was_fitted_under_draws(result: ProbeResult, train: Labelled, test: Labelled) -> None:
    """Rebuilt by hand: features of the fit's draws, a head on them, probabilities averaged over the reading's draws.

    Each draw's features keep the mean that they have at μ: in a group of the fit, or on all of these training images.
    """
    model = posterior()
    at_mean = features(model, train[0], **NORMALISE)
    fit = grouped_draws(model, train[0], 3, SETTINGS.groups, draws_of(FIT), **NORMALISE)
    for group in range(SETTINGS.groups):
        own = fit[:, group :: SETTINGS.groups]
        own += at_mean[group :: SETTINGS.groups].mean(0) - own.mean(1, keepdim=True)
    both = features(model, torch.cat([train[0], test[0]]), 4, draws_of(READ), **NORMALISE)
    read = [x[500:] - x[:500].mean(0) + at_mean.mean(0) for x in both]
    for name, head in fit_heads(fit, train[1], 10, SETTINGS, torch.arange(500) % SETTINGS.groups).items():
        draws = torch.stack([head.probabilities(x) for x in read])
        prediction = result.predictions[f"{name}_draws"]
        torch.testing.assert_close(prediction.mean, draws.mean(0), atol=1e-4, rtol=0)
        assert prediction.mutual_information is not None
        expected = mutual_information(draws).float()
        torch.testing.assert_close(prediction.mutual_information, expected, atol=1e-4, rtol=0)
        assert expected.mean() > 0.01


def test_a_shift_of_all_images_changes_no_prediction(train: Labelled, test: Labelled) -> None:
    """With a posterior over the last bias alone, draws move all features together: under draws is at μ."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(16))
            self.register_buffer("mix", torch.randn(64, 16, generator=Generator().manual_seed(0)) / 8)

        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1) @ self.mix + self.shift

    model = byov.bayesianize(Shifted(), byov.Gaussian(log_var=4.0))  # wider than the features
    settings = replace(SETTINGS, l2=(1e-2,), temper=100)
    at_mean, raw = (
        evaluate_probe(model, train, test, replace(settings, recentre=r), **NORMALISE) for r in (True, False)
    )
    for head in ("linear", "knn"):
        found = at_mean.predictions[f"{head}_draws"]
        torch.testing.assert_close(found.mean, at_mean.predictions[head].mean, atol=1e-3, rtol=0)
        assert float(found.mutual_information.max()) < 1e-4
    assert raw.scores["linear_draws"].top1 < 0.5 < 0.7 < at_mean.scores["linear_draws"].top1
    assert at_mean.probe.temperatures["under_draws"] == pytest.approx(at_mean.probe.temperatures["at_mean"], rel=0.02)


def test_heads_are_fitted_tempered_and_read_under_draws_of_their_own(train: Labelled, test: Labelled) -> None:
    seen: set[bytes] = set()

    class Recording(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 12))

        def forward(self, x: Tensor) -> Tensor:
            seen.add(self.weight.detach().numpy().tobytes())
            return x.flatten(1) @ self.weight

    model, settings = byov.bayesianize(Recording(), byov.Gaussian()), replace(SETTINGS, l2=(1e-2,))
    Probe.fit(model, *train, 10, settings, **NORMALISE)
    fitted = 1 + settings.draws_fit * settings.groups  # μ, and a draw for each group in each pass
    assert len(seen) == fitted
    probe = Probe.fit(model, *train, 10, replace(settings, temper=50), **NORMALISE)
    assert len(seen) == fitted + settings.draws_read
    probe.predict(test[0], draws=settings.draws_read)
    assert len(seen) == fitted + 2 * settings.draws_read


def test_is_deterministic_for_a_seed(result: ProbeResult, train: Labelled, test: Labelled) -> None:
    model = posterior()
    torch.manual_seed(1234)  # the global state plays no part
    again = evaluate_probe(model, train, test, SETTINGS, **NORMALISE)
    assert again.numbers() == result.numbers()
    other = Probe(model, again.probe.at_mean, again.probe.under_draws, seed=1, **NORMALISE)
    first, second = again.probe.predict(test[0], draws=4), other.predict(test[0], draws=4)
    assert torch.equal(first.mean, again.predictions["linear_draws"].mean)
    assert not torch.equal(first.mean, second.mean)


def test_the_probe_predicts_other_images_with_the_same_draws(result: ProbeResult, test: Labelled) -> None:
    """Batches of images one after the other are read by the same networks as all at once."""
    probe, images = result.probe, test[0]
    whole = probe.predict(images, draws=3, head="knn")
    parts = [probe.predict(part, draws=3, head="knn").mean for part in images.split(150)]
    torch.testing.assert_close(torch.cat(parts), whole.mean, atol=1e-4, rtol=0)
    with pytest.raises(ValueError, match="no head 'trees'"):
        probe.predict(images, draws=2, head="trees")


def test_a_plain_encoder_is_read_at_its_weights(result: ProbeResult, train: Labelled, test: Labelled) -> None:
    sets = [ImageSet("digits", *part, tuple("0123456789")) for part in (train, test)]
    found = evaluate_probe(network(), sets[0], sets[1], replace(SETTINGS, temper=50), **NORMALISE)
    assert set(found.scores) == {"linear", "knn"}
    assert list(found.probe.temperatures) == ["at_mean"]
    assert found.scores["linear"].top1 == pytest.approx(result.scores["linear"].top1, abs=0.01)
    assert found.predictions["linear"].mean.sum(1).tolist() == pytest.approx([1.0] * 400)
    with pytest.raises(ValueError, match="no posterior"):
        found.probe.predict_heads(test[0], draws=2)
    with pytest.raises(ValueError, match="under draws"):
        found.probe.predict(test[0], draws=2)


def test_a_probe_is_tempered_at_mu_and_under_draws(digits: Labelled) -> None:
    # Mixed: later digits are by other hands, for which a temperature is another one.
    chosen = torch.cat([torch.arange(500), torch.arange(1000, 1400)])
    order = chosen[torch.randperm(900, generator=Generator().manual_seed(1))]
    train, test = ((digits[0][at], digits[1][at]) for at in (order[:500], order[500:]))
    model = posterior(-7.0)
    plain, found = (
        evaluate_probe(model, train, test, replace(SETTINGS, temper=temper), **NORMALISE) for temper in (0, 400)
    )
    assert plain.probe.temperatures == {}
    for name, reading in (("linear", "at_mean"), ("linear_draws", "under_draws")):
        temperature, before, after = found.probe.temperatures[reading], plain.predictions[name], found.predictions[name]
        assert temperature != 1.0
        torch.testing.assert_close(after.mean, Temperature(temperature).probabilities(before.mean))
        torch.testing.assert_close(after.expected_entropy + after.mutual_information, after.entropy)
        assert (after.mutual_information <= before.mutual_information + 1e-6).all()
        assert found.scores[name].top1 == plain.scores[name].top1
    # An average over draws says too little: under them it is sharpened, and images it has not seen become more likely.
    assert found.probe.temperatures["under_draws"] < 0.95
    assert found.scores["linear_draws"].nll < plain.scores["linear_draws"].nll
    assert found.scores["linear_draws"].ece < plain.scores["linear_draws"].ece
    for name in ("knn", "knn_draws"):
        assert torch.equal(found.predictions[name].mean, plain.predictions[name].mean)


def test_sorted_and_periodic_labels_give_the_temperature_of_mixed_ones(train: Labelled) -> None:
    """Examples are cut into folds at random, each class alike: the order of a data set says nothing."""
    (images, labels), found = train, []
    first = [(labels == c).nonzero()[:40, 0] for c in range(10)]
    for order in (torch.cat(first), torch.stack(first, 1).flatten()):  # 000…111…, 0123456789012…
        settings = replace(SETTINGS, temper=100, l2=(1e-2,))
        probe = Probe.fit(network(), images[order], labels[order], 10, settings, **NORMALISE)
        found.append(probe.temperatures["at_mean"])
    assert found[0] == pytest.approx(found[1], rel=0.3)
    assert all(1.1 / RANGE < temperature < 0.9 * RANGE for temperature in found)


def test_a_class_of_one_example_leaves_the_temperature_at_one(train: Labelled) -> None:
    images, labels = train
    few = torch.cat([(labels == 0).nonzero()[:30, 0], (labels == 1).nonzero()[:1, 0]])
    settings = replace(SETTINGS, k=2, temper=9, l2=(1e-2,))
    with pytest.warns(UserWarning, match="single example"):
        probe = Probe.fit(network(), images[few], labels[few], 10, settings, **NORMALISE)
    assert probe.temperatures == {"at_mean": 1.0}


@given(st.lists(st.integers(2, 9), min_size=1, max_size=6), st.integers(2, 7), st.integers(0, 99))
def test_folds_have_their_share_of_every_class(sizes: list[int], count: int, seed: int) -> None:
    labels = torch.cat([torch.full((size,), c) for c, size in enumerate(sizes)])
    fold = folds(labels, count, seed)
    used = min(count, *sizes)
    assert set(fold.tolist()) == set(range(used))
    for c, size in enumerate(sizes):
        shares = fold[labels == c].bincount(minlength=used)
        assert shares.sum() == size
        assert shares.max() - shares.min() <= 1


def test_bad_input_gets_a_sentence(train: Labelled, test: Labelled) -> None:
    for change, sentence in (
        ({"draws_fit": 0}, "at least one draw"),
        ({"draws_read": -1}, "none or more, not draws_fit=8 and draws_read=-1"),
        ({"temper": -1}, r"^A temperature is fitted on 0 examples or more, not -1\.$"),
        ({"groups": 1}, "at least two groups"),
    ):
        with pytest.raises(ValueError, match=sentence):
            ProbeSettings(**change)
    with pytest.raises(ValueError, match="every test image"):
        evaluate_probe(network(), train, ImageSet("bare", test[0]), SETTINGS)
    with pytest.raises(ValueError, match="reach 10, but the training set has 10"):
        evaluate_probe(network(), train, (test[0][:2], torch.tensor([0, 10])), SETTINGS)
