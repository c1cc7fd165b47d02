"""A serving gives what `predict` gives, call after call, whatever happens to the model in between."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_networks import mlp, seeded
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
def test_it_follows_the_weights_and_their_dtype(rules: Any, strategy: Any) -> None:
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
    check(serving, x)


def test_batches_of_several_shapes_in_turns(model: byov.BayesianModule) -> None:
    serving = byov.Serving(model, 6, keep=True)
    for size in (5, 3, 5, 1, 3):
        x = torch.randn(size, 6).double()
        check(serving, x)
        check(serving, {"input": x})
        found = serving(list(x.split(2)), seeded())
        assert_close(found.draws, by_hand(model, x, 6), rtol=0, atol=1e-12)


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
