"""Is the posterior doing anything? Each sentence where it belongs and nowhere else; numbers against brute force."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
import torch
from small_networks import NETWORKS, seeded
from torch import Tensor, nn

import byov
from byov.evaluation.check import DIFFER, MOVED, sigma_movement
from byov.metrics import functional as metrics


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def examples(count: int = 300) -> tuple[Tensor, Tensor]:
    """Inputs, and the labels that the network itself gives them."""
    x = torch.randn(count, 6, generator=seeded(1))
    return x, classifier()(x).argmax(1)


def told(check: object, words: str) -> bool:
    return any(words in sentence for sentence in check.sentences)  # type: ignore[attr-defined]


def learned(log_var: float = -4.0) -> byov.BayesianModule:
    """A posterior whose σ has moved from its start, each by itself."""
    model = byov.bayesianize(classifier(), byov.Gaussian(log_var))
    with torch.no_grad():
        rho = model.factors[0].get_parameter("log_var")
        rho.add_(2.0 * torch.randn(rho.shape, generator=seeded(2)))
    return model


# Numbers


def test_scores_are_those_of_brute_force() -> None:
    model, (x, y) = learned(-2.0), examples()
    found = byov.check(model, x, y, samples=7, generator=seeded())
    prediction = byov.predict(model, x, 7, generator=seeded())
    assert (found.inputs, found.samples) == (300, 7)
    for name in ("entropy", "mutual_information"):
        assert getattr(found, name) == pytest.approx(float(getattr(prediction, name).mean()), rel=1e-4)
    assert found.share == found.mutual_information / found.entropy
    plain = model.point()(x).softmax(1).detach()
    for scores, probs in ((found.at_mean, plain), (found.under_draws, prediction.mean)):
        metric = {"top1": metrics.accuracy, "nll": metrics.nll, "ece": metrics.calibration_error}
        expected = {name: float(function(probs, y)) for name, function in metric.items()}
        assert scores == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_the_error_of_a_score_is_how_much_it_differs_from_draws_to_draws() -> None:
    model, (x, y) = learned(-1.0), examples()
    checks = [byov.check(model, x, y, 20, seeded(i)) for i in range(60)]
    for name in ("top1", "nll"):
        scores = torch.tensor([c.under_draws[name] for c in checks])  # type: ignore[index]
        errors = torch.tensor([c.error[name] for c in checks])  # type: ignore[index]
        assert 0.75 < float(errors.mean() / scores.std()) < 1.35  # of 60: a tenth


def test_pairs_loaders_and_mappings_give_the_numbers_of_one_batch() -> None:
    model, (x, y) = learned(), examples()
    whole = byov.check(model, x, y, 5, seeded())
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=77)
    for given in ((x, y), loader, [(x[:100], y[:100]), (x[100:], y[100:])]):
        found = byov.check(model, given, samples=5, generator=seeded())
        assert found.sentences == whole.sentences
        assert (found.entropy, found.snr) == (pytest.approx(whole.entropy), whole.snr)
        assert found.under_draws == pytest.approx(whole.under_draws, rel=1e-4)
    for given in (x, {"input": x}, [x[:100], x[100:]], (x[:150], x[150:])):
        named = byov.bayesianize(nn.Sequential(classifier()), byov.Gaussian(-4.0)) if isinstance(given, dict) else model
        found = byov.check(named, given, samples=5, generator=seeded())
        assert (found.at_mean, found.under_draws, found.error) == (None, None, None)


@pytest.mark.parametrize(
    "family",
    [byov.Gaussian(), byov.Gaussian(relative=0.1), byov.Dropout(0.2), byov.DropConnect(0.2)]
    + [kind(3) for kind in (byov.EMP, byov.ECMP, byov.Ensemble)],
    ids=str,
)
@pytest.mark.parametrize("kind", ["mlp-batchnorm", "tied"])
def test_every_family_is_read_and_left_as_it_was(family: byov.posterior.Family, kind: str) -> None:
    make, batch = NETWORKS[kind]
    model, x = byov.bayesianize(make(), family), batch()
    y = torch.zeros(model(x).movedim(1, -1).shape[:-1], dtype=torch.long)  # `tied` has a class for every word
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = byov.check(model, x, y, samples=3)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert str(found).count("\n") == 1 + len(found.sentences)
    assert (found.moved is None) == (not isinstance(family, byov.Gaussian))


# Sentences


def test_a_posterior_that_works_is_told_nothing() -> None:
    model, (x, y) = learned(-6.0), examples()
    with torch.no_grad():  # surer of its classes, and nothing in between two: accuracy does not depend on the draw
        model.factors[0].get_parameter("mean")[-51:].mul_(8.0)
        sure = model.eval()(x).softmax(1).amax(1) > 0.95
    found = byov.check(model, x[sure], y[sure], samples=300, generator=seeded())
    assert found.sentences == ()
    assert found.share > DIFFER
    assert "accuracy" in str(found)
    assert "warning" not in str(found)


def test_sigma_has_moved_by_half_of_what_its_log_variance_has() -> None:
    model = byov.bayesianize(classifier(), {"0.*": byov.Gaussian(-4.0), "*": byov.Gaussian(-6.0)})
    assert sigma_movement(model)[0] == pytest.approx(0.0, abs=1e-6)
    assert "σ has hardly moved" in sigma_movement(model)[1][0]
    for factor in model.factors:
        factor.get_parameter("log_var").data.sub_(1.5)
    assert sigma_movement(model) == (pytest.approx(0.75), ())
    assert sigma_movement(byov.bayesianize(classifier(), byov.EMP(2))) == (None, ())


def test_a_relative_start_is_known_up_to_the_weights_own_way() -> None:
    """The scale that σ started from is not kept: weights that grew by 1.9 are no σ that moved."""
    model = byov.bayesianize(classifier(), byov.Gaussian(relative=0.1))
    factor = model.factors[0]
    factor.get_parameter("mean").data.mul_(1.9)
    value, sentences = sigma_movement(model)
    assert value == pytest.approx(0.0, abs=1e-5)
    assert len(sentences) == 1
    rho = factor.get_parameter("log_var")
    rho.data.add_(4.0)  # log σ by 2, less log 1.9 of the scale, less the factor of two that is granted
    assert sigma_movement(model)[0] == pytest.approx(2.0 - log(1.9) - log(2.0), abs=1e-4)
    model = byov.bayesianize(classifier(), byov.Gaussian(relative=0.1))
    rho = model.factors[0].get_parameter("log_var")
    rho.data.add_(torch.randn(rho.shape, generator=seeded()))
    assert sigma_movement(model)[0] == pytest.approx(0.5 * 0.674, rel=0.3)  # the median of |N(0, ½)|
    assert sigma_movement(model)[0] > MOVED
    assert sigma_movement(model)[1] == ()


def test_each_warning_is_given_where_it_belongs_and_nowhere_else() -> None:
    x, y = examples()
    still, wide = (byov.bayesianize(classifier(), byov.Gaussian(log_var)) for log_var in (-20.0, 0.0))
    found = byov.check(still, x, samples=5)
    assert found.share < 1e-3
    assert told(found, "The draws hardly differ")
    assert not told(byov.check(learned(), x, samples=20), "The draws hardly differ")
    assert byov.check(wide, x, samples=5).snr < 0.3
    assert told(byov.check(wide, x, samples=5), "The posterior is wide")
    assert told(byov.check(wide, x, y, samples=5), "The posterior is wide")
    wrong = (y + 1) % 3  # the surer, the worse: noise helps
    assert not told(byov.check(wide, x, wrong, samples=50, generator=seeded()), "The posterior is wide")
    few = byov.check(learned(-1.0), x, y, samples=4, generator=seeded())
    assert told(few, "Too few draws for the digits shown: 4 give")
    assert not told(byov.check(learned(-1.0), x, samples=4), "Too few draws")  # no digits of scores are shown


def test_a_mean_that_is_no_network() -> None:
    x, _ = examples()
    anew = byov.bayesianize(classifier(), byov.Ensemble(2, start="reset"))
    assert told(byov.check(anew, x, samples=4), "has no mean network")
    net = nn.Sequential(nn.Linear(6, 16, bias=False), nn.Tanh(), nn.Linear(16, 3, bias=False))
    model = byov.bayesianize(net, byov.Ensemble(2, spread=0.0))
    model.factors[0].get_parameter("components").data[1].neg_()  # the same function, as tanh is odd; the mean is 0
    found = byov.check(model, x, net(x).argmax(1), samples=8)
    assert found.under_draws is not None
    assert found.under_draws["top1"] == 1.0
    assert told(found, "The mean network disagrees with the draws")


# What it does not take


def test_bad_input_is_one_sentence() -> None:
    model, (x, y) = learned(), examples()
    for arguments, kind, words in (
        ((x, y, 1), ValueError, "at least two, not samples=1"),
        (([],), ValueError, "The loader is empty"),
        ((x, y.float()), ValueError, "a class index for each of 300 predictions"),
        ((x, y[:5]), ValueError, "a class index for each of 300 predictions"),
        (([x], y), ValueError, "a loader must yield"),
        ((3,), TypeError, "a pair .x, y. or a loader, not int"),
    ):
        with pytest.raises(kind, match=words):
            byov.check(model, *arguments)
    with pytest.raises(TypeError, match=r"^check needs a posterior, and Sequential has none: .*first\.$"):
        byov.check(classifier(), x)


def test_tasks_with_classes_are_checked_and_others_refused() -> None:
    """A single logit as its two classes; tokens by their labels, but for those to ignore; outputs by name."""
    torch.manual_seed(1)
    x, y = torch.randn(20, 6), torch.randint(2, (20,))
    single = byov.bayesianize(nn.Linear(6, 1), byov.Gaussian(-2.0))
    with pytest.raises(ValueError, match="one number per position"):
        byov.check(single, x, y)
    found = byov.check(single, x, y, task="classification", generator=seeded())
    p = single.eval()(x).sigmoid()[:, 0]
    assert found.at_mean["top1"] == pytest.approx(float(((p > 0.5) == y).float().mean()))  # type: ignore[index]

    class Tokens(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return {"logits": super().forward(x).view(len(x), 2, 3), "half": super().forward(x)[:, :3]}

    tokens, labels = byov.bayesianize(Tokens(6, 6), byov.Gaussian(-2.0)), torch.randint(3, (20, 2))
    whole = byov.check(tokens, x, labels, task="token", generator=seeded())
    logits = tokens.eval()(x)["logits"]
    assert whole.at_mean["top1"] == pytest.approx(float((logits.argmax(2) == labels).float().mean()))  # type: ignore[index]
    first = torch.where(torch.arange(2) == 0, labels, -100)
    part = byov.check(tokens, x, first, task="token", generator=seeded())
    right = (logits.argmax(2) == labels).float()[:, 0]
    assert part.at_mean["top1"] == pytest.approx(float(right.mean()))  # type: ignore[index]
    assert byov.check(tokens, x, labels[:, 0], output="half").inputs == 20
    with pytest.raises(ValueError, match=r"check needs class probabilities: .* not 'regression'"):
        byov.check(single, x, task="regression")
    outer = nn.Sequential(nn.Linear(6, 6), byov.bayesianize(nn.Linear(6, 3), byov.Gaussian(-2.0)))
    expected = outer.eval()(x).softmax(1)
    assert byov.check(outer, x, y, generator=seeded()).at_mean["nll"] == pytest.approx(  # type: ignore[index]
        float(-expected[range(20), y].log().mean().detach()), rel=1e-4
    )
