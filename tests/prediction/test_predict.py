"""A serving gives what `predict` gives, call after call; and draws stop where the Monte-Carlo error is small enough."""

from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from small_networks import mlp, seeded
from torch import Tensor, nn
from torch.testing import assert_close

import byov
from byov.prediction.result import Moments

from .networks import Net, by_hand, same, spread


def check(serving: byov.Serving, x: Any, seed: int = 7, atol: float = 1e-12) -> None:
    """One call, compared with a loop by hand; the serving keeps its draws."""
    found = serving(x, seeded(seed)).draws
    assert_close(found, by_hand(serving.model, x, 6, seed), rtol=0, atol=atol)


@pytest.mark.parametrize("rules", [byov.Gaussian(-1.0), byov.EMP(3), {byov.output_layer: byov.Ensemble(3)}], ids=str)
def test_it_follows_the_weights_their_dtype_and_the_batches(rules: Any, strategy: Any) -> None:
    model, x = spread(byov.bayesianize(Net(), rules)).double(), torch.randn(5, 6).double()
    serving = byov.Serving(model, 6, strategy, keep=True)
    for call in range(3):
        check(serving, x, seed=call)
        spread(model)  # in place, as an optimizer does
    state = {k: 2 * v if v.is_floating_point() else v for k, v in model.state_dict().items()}
    for assign in (False, True):
        model.load_state_dict(state, assign=assign)
        check(serving, x)
    for factor in model.factors:
        for role in factor.roles.values():
            role.data = 3 * role.data  # which no version counts
    check(serving, x)
    model.float()
    check(serving, x.float(), atol=1e-5)
    model.double()
    check(serving, x)
    model.net.register_buffer("scale", torch.tensor(3.0).double())
    model.net.way = lambda net, x: net.head(net.body(x) * net.scale)
    for rows in (x, x[:3], x, {"x": x[:1]}, x[:3]):
        check(serving, rows)


@pytest.mark.parametrize("tolerance", [None, 0.02])
def test_calls_are_those_of_predict(model: byov.BayesianModule, strategy: Any, tolerance: float | None) -> None:
    """To the bit, and from the global stream too: every call has draws of its own."""
    serving, x = byov.Serving(model, 70, strategy, tolerance), torch.randn(5, 6).double()
    for data in (x, [x[:2], x[2:]]):
        torch.manual_seed(3)
        found = [serving(data), serving(data)]
        torch.manual_seed(3)
        for one in found:
            same(one, byov.predict(model, data, 70, strategy, tolerance), atol=0)
        assert float((found[0].mean - found[1].mean).abs().max()) > 1e-6


def test_a_serving_inside_its_own_pass_is_refused(model: byov.BayesianModule) -> None:
    """Its draws would be written where the outer one's are."""
    serving, x = byov.Serving(model, 6, "loop"), torch.randn(4, 6).double()
    handle = model.net[0].register_forward_hook(lambda *_: serving(x))
    with pytest.raises(RuntimeError, match="inside its own pass"):
        serving(x)
    handle.remove()
    assert len(serving(x)) == 4


# Draws until the error is small enough, each input by itself

SAMPLES, TOLERANCE = 300, 0.012
LOOKS = (32, 64, 96, 144, 216, 300)


def standard_error(draws: Tensor) -> float:
    return float((draws.std(0) / len(draws) ** 0.5).max())


def until(model: byov.BayesianModule, x: Any, tolerance: float = TOLERANCE, samples: int = SAMPLES) -> byov.Prediction:
    return byov.predict(model, x, samples, tolerance=tolerance, generator=seeded())


@pytest.fixture(scope="module", params=["*", "3.*"], ids=["all", "head"])
def stopping(request: pytest.FixtureRequest) -> byov.BayesianModule:
    torch.manual_seed(3)
    return byov.bayesianize(mlp(), {request.param: byov.Dropout(0.1)}).double()


@pytest.fixture(scope="module")
def x() -> Tensor:
    """Inputs of all sizes, for which the draws agree more or less."""
    return (torch.randn(60, 6, generator=seeded()) * torch.linspace(0.02, 6.0, 60)[:, None]).double()


def test_every_input_stops_at_the_first_look_below_the_tolerance(
    stopping: byov.BayesianModule, x: Tensor, strategy: Any
) -> None:
    """And its result is that of its own first draws: nothing about the other inputs shows, and their order is kept."""
    draws = by_hand(stopping, x, SAMPLES)
    found = byov.predict(stopping, x, SAMPLES, strategy, tolerance=TOLERANCE, generator=seeded())
    used = found.samples
    assert used.shape == (60,)
    assert set(used.tolist()) <= set(LOOKS)
    assert len(set(used.tolist())) >= 4
    for i, count in enumerate(used.tolist()):
        own = draws[:count, i]
        assert count == SAMPLES or standard_error(own) < TOLERANCE
        assert all(standard_error(draws[:look, i]) >= TOLERANCE for look in LOOKS if look < count)
        assert_close(found.mean[i], own.mean(0), rtol=0, atol=1e-12)
        assert_close(found.std[i], own.std(0, correction=0), rtol=0, atol=1e-10)
        assert_close(found.entropy[i], torch.special.entr(own.mean(0)).sum(), rtol=0, atol=1e-12)
        assert_close(found.expected_entropy[i], torch.special.entr(own).sum(1).mean(), rtol=0, atol=1e-12)


def test_the_company_of_an_input_does_not_matter(stopping: byov.BayesianModule, x: Tensor) -> None:
    whole, order = until(stopping, x), torch.randperm(len(x))
    shuffled, batches, mapping = (until(stopping, data) for data in (x[order], list(x.split(7)), {"input": x}))
    for name in ("mean", "std", "mutual_information", "samples"):
        value = getattr(whole, name)
        assert_close(getattr(shuffled, name), value[order], rtol=0, atol=1e-10)
        assert_close(getattr(batches, name), value, rtol=0, atol=1e-10)
        assert_close(getattr(mapping, name), value, rtol=0, atol=1e-10)


def test_loose_and_tight_tolerances(stopping: byov.BayesianModule, x: Tensor) -> None:
    tight = until(stopping, x, 1e-9)
    plain = byov.predict(stopping, x, SAMPLES, generator=seeded())
    assert_close(tight.mean, plain.mean, rtol=0, atol=1e-12)
    loose, few = until(stopping, x, 10.0), until(stopping, x, 10.0, samples=5)
    for found, draws in ((tight, SAMPLES), (loose, 32), (few, 5)):
        assert set(found.samples.tolist()) == {draws}


class Flat(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(1)


@pytest.mark.parametrize("layer", [nn.Linear, Flat])
def test_a_regression_stops_too(layer: type[nn.Linear]) -> None:
    line = byov.bayesianize(layer(1, 1, bias=False), byov.Gaussian(-2.0))
    x = torch.tensor([[0.0], [0.3], [30.0]])
    draws = by_hand(line, x, 200, softmax=False)
    found = byov.predict(line, x, 200, tolerance=0.02, generator=seeded(), task="regression", precision=1.0)
    used = found.samples.tolist()
    assert used[0] == 32
    assert used[2] == 200
    assert used == sorted(used)
    for i, count in enumerate(used):
        assert_close(found.mean[i], draws[:count, i].mean(0), rtol=1e-5, atol=1e-6)


# What a prediction says of a regression, and how far rounding goes


def line(log_var: float = -1.0) -> tuple[byov.BayesianModule, Tensor]:
    """f(x) = w·x with w ~ N(2, σ²): the predictive is N(2x, σ²x² + 1/τ)."""
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 2.0)
    return byov.bayesianize(net, byov.Gaussian(log_var)), torch.tensor([[0.0], [0.5], [-3.0]])


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_a_regression_converges_to_its_closed_form(strategy: Any) -> None:
    model, x = line()
    samples, precision, variance = 4000, 2.5, float(torch.tensor(-1.0).exp())
    found = byov.predict(model, x, samples, strategy, generator=seeded(2), task="regression", precision=precision)
    spread = variance * x**2
    error = 5 * spread.sqrt() / sqrt(samples) + 1e-6  # five standard errors
    assert bool(((found.mean - 2 * x).abs() <= error).all())
    # The relative standard error of a Gaussian's variance is √(2/S).
    assert_close(found.std**2 - 1 / precision, spread, rtol=5 * sqrt(2 / samples), atol=1e-6)
    expected = stats.norm(scale=np.sqrt(spread.numpy() + 1 / precision)).entropy()
    assert_close(found.entropy.numpy(), expected.astype(np.float32), rtol=0, atol=0.05)
    aleatoric = float(stats.norm(scale=precision**-0.5).entropy())
    assert_close(found.expected_entropy, torch.full_like(x, aleatoric))
    assert_close(found.mutual_information, found.entropy - found.expected_entropy)
    assert float(found.mutual_information[0]) == pytest.approx(0.0, abs=1e-6)  # at x = 0 the weight does not matter


def test_a_regression_without_a_precision_has_no_entropy() -> None:
    model, x = line()
    found = byov.predict(model, x, 50, generator=seeded(2), task="regression", keep=True)
    by_loop = by_hand(model, x, 50, seed=2, softmax=False)
    assert_close(found.draws, by_loop)
    assert_close(found.mean, by_loop.mean(0))
    assert_close(found.std, by_loop.std(0, correction=0))
    assert_close(found.epistemic, found.std**2)
    assert found.aleatoric is found.entropy is found.expected_entropy is found.mutual_information is None
    with_noise = byov.predict(model, x, 50, generator=seeded(2), task="regression", precision=4.0)
    assert_close(with_noise.std, (found.std**2 + 0.25).sqrt())
    assert_close(with_noise.epistemic, found.epistemic)
    assert_close(with_noise.aleatoric, torch.full((3, 1), 0.25))
    assert_close(with_noise.mean, found.mean)


def test_moments_survive_where_the_difference_of_squares_does_not() -> None:
    """A spread of 1e-3 around 1000: E[f²] − E[f]² in float32 would be all rounding."""
    values = 1000 + 1e-3 * torch.randn(400, 3, 2, dtype=torch.float64)
    moments = Moments("regression")
    for chunk in values.float().split([1, 7, 92, 300]):
        moments.update(chunk)
    spread = values.float().double().std(0, correction=0)
    assert_close(moments.result(None)["std"].double(), spread, rtol=0.05, atol=0)


def test_information_is_not_negative_by_rounding() -> None:
    model = byov.bayesianize(nn.Linear(6, 5), byov.Gaussian(-40.0))
    found = byov.predict(model, torch.randn(400, 6), 50)
    assert float((found.entropy - found.expected_entropy).min()) < 0
    assert float(found.mutual_information.min()) == 0.0


def test_a_prediction_prints_in_one_line() -> None:
    model, x = line()
    assert (
        repr(byov.predict(model, x, 3, task="regression"))
        == "Prediction(regression: mean (3, 1), draws: 3, strategy: head)"
    )
    assert "on average" in repr(byov.predict(model, x, 30, task="regression", tolerance=0.1))
