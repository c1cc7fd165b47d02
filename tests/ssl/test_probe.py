"""Probes on digits: better than chance, the same at μ and under draws without spread, the same again for a seed."""

from functools import cache

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Generator, Tensor, nn

import byov
from byov.data.datasets import ImageSet
from byov.metrics.functional import accuracy, calibration_error, mutual_information
from byov.posterior.random import stream
from byov.ssl.classifiers import LinearProbe
from byov.ssl.features import features, grouped_draws
from byov.ssl.probe import FIT, READ, Probe, ProbeResult, ProbeSettings, Scores, evaluate_probe, fit_heads

NORMALISE = {"mean": (0.3,), "std": (0.37,)}
SETTINGS = ProbeSettings(k=20, l2=(1e-1, 1e-2, 1e-3), draws_fit=3, draws_read=4)


@cache
def digits() -> tuple[ImageSet, ImageSet]:
    data = load_digits()
    images, labels = (torch.tensor(data.images)[:, None] * 15.9375).byte(), torch.tensor(data.target)
    whole = ImageSet("digits", images, labels, tuple("0123456789"))
    return whole.subset(torch.arange(500)), whole.subset(torch.arange(1000, 1400))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(144, 48)
    )


def posterior(log_var: float) -> byov.BayesianModule:
    return byov.bayesianize(network(), byov.Gaussian(log_var=log_var))


@cache
def result(log_var: float = -8.0) -> ProbeResult:
    train, test = digits()
    return evaluate_probe(posterior(log_var), train, test, SETTINGS, **NORMALISE)


def draws_of(what: int) -> Generator:
    return Generator().manual_seed(stream(SETTINGS.seed, what))


def test_probes_beat_chance() -> None:
    """Chance is 10 %; random convolutions keep most of what a digit is."""
    scores = result().scores
    assert set(scores) == {"linear", "knn", "linear_draws", "knn_draws"}
    assert scores["linear"].top1 > 0.8
    assert scores["knn"].top1 > 0.7
    assert scores["linear_draws"].top1 > 0.6
    assert scores["knn_draws"].top1 > 0.6
    assert all(s.top5 >= s.top1 for s in scores.values())


def test_scores_are_those_of_the_probabilities() -> None:
    found, labels = result(), digits()[1].labels
    assert labels is not None
    for name, scores in found.scores.items():
        probs = found.predictions[name].mean
        assert probs.shape == (400, 10)
        assert scores.top1 == accuracy(probs, labels).item()
        assert scores.ece == calibration_error(probs, labels, bins=15).item()
        parts = scores.uncertainty - scores.resolution + scores.reliability + scores.within_bin
        assert parts == pytest.approx(scores.brier, abs=1e-9)
    assert found.numbers()["linear_draws/ece"] == found.scores["linear_draws"].ece


def test_draws_without_spread_are_the_mean() -> None:
    found = result(-70.0)
    for head in ("linear", "knn"):
        at_mean, drawn = found.predictions[head], found.predictions[f"{head}_draws"]
        torch.testing.assert_close(drawn.mean, at_mean.mean, atol=1e-3, rtol=0)
        assert drawn.samples == SETTINGS.draws_read
        assert drawn.mutual_information is not None
        assert drawn.mutual_information.max() < 1e-5


def test_a_head_read_under_draws_was_fitted_under_draws() -> None:
    """Rebuilt by hand: features of the fit's draws, a head on them, probabilities averaged over the reading's draws."""
    (train, test), model, found = digits(), posterior(-8.0), result()
    assert train.labels is not None
    fit = grouped_draws(model, train.images, 3, SETTINGS.groups, draws_of(FIT), **NORMALISE)
    groups = torch.arange(500) % SETTINGS.groups
    read = features(model, test.images, 4, draws_of(READ), **NORMALISE)
    assert not torch.equal(fit[0, :5], features(model, train.images[:5], 1, draws_of(READ), **NORMALISE)[0])
    for name, head in fit_heads(fit, train.labels, 10, SETTINGS, groups).items():
        draws = torch.stack([head.probabilities(x) for x in read])
        prediction = found.predictions[f"{name}_draws"]
        torch.testing.assert_close(prediction.mean, draws.mean(0), atol=1e-5, rtol=0)
        assert prediction.mutual_information is not None
        expected = mutual_information(draws).float()
        torch.testing.assert_close(prediction.mutual_information, expected, atol=1e-5, rtol=0)
        assert expected.mean() > 0.01


def test_is_deterministic_for_a_seed() -> None:
    train, test = digits()
    model = posterior(-8.0)
    torch.manual_seed(1234)  # the global state plays no part
    again = evaluate_probe(model, train, test, SETTINGS, **NORMALISE)
    assert again.numbers() == result().numbers()
    other = Probe(model, again.probe.at_mean, again.probe.under_draws, seed=1, **NORMALISE)
    first, second = again.probe.predict(test.images, draws=4), other.predict(test.images, draws=4)
    assert torch.equal(first.mean, again.predictions["linear_draws"].mean)
    assert not torch.equal(first.mean, second.mean)


def test_the_probe_predicts_other_images_with_the_same_draws() -> None:
    """Batches of images one after the other are read by the same networks as all at once."""
    probe, images = result().probe, digits()[1].images
    whole = probe.predict(images, draws=3, head="knn")
    parts = [probe.predict(part, draws=3, head="knn").mean for part in images.split(150)]
    torch.testing.assert_close(torch.cat(parts), whole.mean, atol=1e-4, rtol=0)
    shifted = (images.float() + 60 * torch.rand(images.shape, generator=Generator().manual_seed(0))).clamp(0, 255)
    clean, noisy = (probe.predict(x, draws=4).entropy for x in (images, shifted.byte()))
    assert clean is not None
    assert noisy is not None
    assert noisy.mean() > clean.mean()


def test_a_saved_head_serves_a_new_probe() -> None:
    probe, images = result().probe, digits()[1].images
    linear = probe.under_draws["linear"]
    assert isinstance(linear, LinearProbe)
    state = {name: tensor.clone() for name, tensor in linear.state_dict().items()}
    loaded = Probe(posterior(-8.0), {}, {"linear": LinearProbe(**state)}, **NORMALISE)
    assert torch.equal(loaded.predict(images, draws=2).mean, probe.predict(images, draws=2).mean)
    with pytest.raises(ValueError, match="no head 'knn'"):
        loaded.predict(images, draws=2, head="knn")


def test_a_plain_encoder_is_read_at_its_weights() -> None:
    train, test = digits()
    pairs: list[tuple[Tensor, Tensor]] = [(s.images, s.labels) for s in (train, test) if s.labels is not None]
    found = evaluate_probe(network(), pairs[0], pairs[1], SETTINGS, **NORMALISE)
    assert set(found.scores) == {"linear", "knn"}
    assert found.scores["linear"].top1 == pytest.approx(result().scores["linear"].top1, abs=0.01)
    with pytest.raises(ValueError, match="no posterior"):
        found.probe.predict_heads(test.images, draws=2)
    with pytest.raises(ValueError, match="under draws"):
        found.probe.predict(test.images, draws=2)


def test_few_classes_have_a_top5() -> None:
    probs, labels = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]]), torch.tensor([0, 1])
    assert (Scores.of(probs, labels).top1, Scores.of(probs, labels).top5) == (0.5, 1.0)


def test_bad_input_gets_a_sentence() -> None:
    train, test = digits()
    with pytest.raises(ValueError, match="at least one draw"):
        ProbeSettings(draws_fit=0)
    with pytest.raises(ValueError, match="every test image"):
        evaluate_probe(network(), train, ImageSet("bare", test.images), SETTINGS)
    with pytest.raises(ValueError, match="reach 10, but the training set has 10"):
        evaluate_probe(network(), train, (test.images[:2], torch.tensor([0, 10])), SETTINGS)
