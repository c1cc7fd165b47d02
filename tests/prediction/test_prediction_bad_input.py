"""Bad input is answered with one sentence, and leaves the model as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_networks import mlp
from torch import Tensor, nn

import byov

from .networks import Net


@pytest.fixture
def model() -> byov.BayesianModule:
    return byov.bayesianize(mlp(), byov.Gaussian())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"samples": 0}, "at least one draw, not samples=0"),
        ({"samples": 2.5}, r"at least one draw, not samples=2\.5"),
        ({"samples": True}, "at least one draw, not samples=True"),
        ({"strategy": "fast"}, "'auto', 'loop' or 'vmap', not 'fast'"),
        ({"task": "ranking"}, "'classification' or 'regression', not 'ranking'"),
        ({"tolerance": -1.0}, "tolerance is above 0, not -1"),
        ({"tolerance": float("nan")}, "tolerance is above 0, not nan"),
        ({"precision": 1.0}, "precision is above 0 and belongs to a regression"),
        ({"precision": 0.0, "task": "regression"}, "precision is above 0"),
        ({"keep": True, "tolerance": 0.1}, "Draws cannot be kept with a tolerance"),
    ],
)
def test_settings(model: byov.BayesianModule, wrong: dict[str, Any], sentence: str) -> None:
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match=sentence):
        byov.predict(model, torch.randn(2, 6, generator=torch.Generator()), **wrong)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


@pytest.mark.parametrize(
    ("x", "error", "sentence"),
    [
        ([], ValueError, "The loader is empty"),
        (torch.empty(0, 6), ValueError, "The batch is empty"),
        ({}, ValueError, "The batch is empty"),
        ([torch.randn(2, 6), torch.empty(0, 6)], ValueError, "The batch is empty"),
        (["text"], TypeError, "A loader gives tensors, .* not str"),
        (3, TypeError, "a tensor, a mapping of tensors or a loader, not int"),
        (torch.tensor(1.0), TypeError, "A batch is a tensor"),
        ({"input": [1.0, 2.0]}, TypeError, "a mapping of tensors"),
    ],
)
def test_inputs(model: byov.BayesianModule, x: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        byov.predict(model, x, 5)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("strategy", ["loop", "vmap", "auto"])
@pytest.mark.parametrize("tolerance", [None, 0.01])
@pytest.mark.parametrize("net", [mlp, Net])
def test_weights_that_are_not_numbers(net: Any, strategy: Any, tolerance: float | None) -> None:
    model, x = byov.bayesianize(net(), byov.Gaussian()), torch.randn(4, 6)
    x[2, 0] = torch.nan
    with pytest.raises(ValueError, match="not finite for 1 of 4 inputs"):
        byov.predict(model, x, 12, strategy, tolerance)
    model.q[0].mean.data[5] = torch.nan
    with pytest.raises(ValueError, match="not finite for 4 of 4 inputs"):
        byov.predict(model, torch.randn(4, 6), 12, strategy, tolerance)
    with pytest.raises(ValueError, match="not finite for 4 of 4 inputs"):
        byov.predict(model, [torch.randn(4, 6)], 12, strategy, tolerance, task="regression")
    assert model.training


class Returns(nn.Module):
    """A linear layer whose output is passed on as something else."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.linear, self.what = nn.Linear(6, 3), what

    def forward(self, x: Tensor) -> Any:
        return self.what(self.linear(x))


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("what", "task", "error", "sentence"),
    [
        (lambda h: (h, h), "classification", TypeError, "returns one tensor, not tuple"),
        (lambda h: {"logits": h}, "regression", TypeError, "returns one tensor, not dict"),
        (lambda h: h[:, 0], "classification", ValueError, r"logits \(N, C\), not a tensor of shape \(4,\)"),
        (lambda h: h.sum(), "regression", ValueError, r"a tensor of shape \(\) for 4 inputs"),
        (lambda h: h.mean(0, keepdim=True), "classification", ValueError, r"shape \(1, 3\) for 4 inputs"),
    ],
)
def test_outputs(what: Any, task: Any, error: type[Exception], sentence: str, strategy: Any, plain: bool) -> None:
    net = Returns(what)
    model = net if plain else byov.bayesianize(net, byov.Gaussian())
    with pytest.raises(error, match=sentence):
        byov.predict(model, torch.randn(4, 6), 10, strategy, task=task)
    assert model.training


def test_a_model_that_is_none() -> None:
    with pytest.raises(TypeError, match=r"a BayesianModule or another torch\.nn\.Module, not function"):
        byov.predict(lambda x: x, torch.randn(4, 6))  # type: ignore[arg-type]
