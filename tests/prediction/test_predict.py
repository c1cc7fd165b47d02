"""A serving gives what `predict` gives, call after call; and draws stop where the Monte-Carlo error is small enough."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_networks import mlp, seeded
from torch import Tensor
from torch.testing import assert_close

import byov

from .networks import STRATEGIES, Net, by_hand, same, spread


def check(serving: byov.Serving, x: Any, seed: int = 7, atol: float = 1e-12) -> None:
    """One call, compared with a loop by hand; the serving keeps its draws."""
    found = serving(x, seeded(seed)).draws
    assert_close(found, by_hand(serving.model, x, 6, seed), rtol=0, atol=atol)  # type: ignore[arg-type]


@pytest.fixture
def model() -> byov.BayesianModule:
    return spread(byov.bayesianize(mlp(), byov.Gaussian(-4.0))).double()


@pytest.mark.parametrize("strategy", STRATEGIES)
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


@pytest.mark.parametrize("strategy", STRATEGIES)
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
    handle = model.net[0].register_forward_hook(lambda *_: serving(x))  # type: ignore[index,operator,func-returns-value]
    with pytest.raises(RuntimeError, match="inside a pass of its own"):
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


@pytest.mark.parametrize("strategy", ["loop", "vmap", "auto"])
def test_every_input_stops_at_the_first_look_below_the_tolerance(
    stopping: byov.BayesianModule, x: Tensor, strategy: Any
) -> None:
    """And its result is that of its own first draws: nothing about the other inputs shows, and their order is kept."""
    draws = by_hand(stopping, x, SAMPLES)
    found = byov.predict(stopping, x, SAMPLES, strategy, tolerance=TOLERANCE, generator=seeded())
    used = found.samples
    assert isinstance(used, Tensor)
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
        assert set(found.samples.tolist()) == {draws}  # type: ignore[union-attr]


def test_a_regression_stops_too() -> None:
    line = byov.bayesianize(torch.nn.Linear(1, 1, bias=False), byov.Gaussian(-2.0))
    x = torch.tensor([[0.0], [0.3], [30.0]])
    draws = by_hand(line, x, 200, softmax=False)
    found = byov.predict(line, x, 200, tolerance=0.02, generator=seeded(), task="regression", precision=1.0)
    used = found.samples.tolist()
    assert used[0] == 32
    assert used[2] == 200
    assert used == sorted(used)
    for i, count in enumerate(used):
        assert_close(found.mean[i], draws[:count, i].mean(0), rtol=1e-5, atol=1e-6)
