"""β over training, what N is, and components whose gradients are held apart."""

from __future__ import annotations

from math import cos, pi
from typing import Any

import pytest
import torch
from torch import nn

import byov

STEPS = (-5, 0, 25, 50, 75, 100, 300)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ("cosine", [0.0, 0.0, (1 - cos(pi / 4)) / 2, 0.5, (1 + cos(pi / 4)) / 2, 1.0, 1.0]),
        ("linear", [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0]),
        ("constant", [1.0] * 7),
    ],
)
def test_beta_from_start_to_end(schedule: Any, values: list[float]) -> None:
    assert [byov.beta(step, 100, schedule=schedule) for step in STEPS] == pytest.approx(values)
    down = [byov.beta(step, 100, end=0.01, start=3.0, schedule=schedule) for step in STEPS]
    start = 0.01 if schedule == "constant" else 3.0
    assert down == pytest.approx([start + (0.01 - start) * v for v in values])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"total": 0}, "at least one step, not 0"),
        ({"end": -1}, "β is at least 0, not -1"),
        ({"schedule": "step"}, "'cosine', 'linear' or 'constant', not 'step'"),
    ],
)
def test_bad_schedules_are_refused_in_a_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        byov.beta(**{"step": 0, "total": 10, **arguments})


@pytest.mark.parametrize(
    ("scale", "n"), [("dataset", 50_000.0), ("parameters", 1_000.0), ("none", 1.0), (123, 123.0), (0.5, 0.5)]
)
def test_kl_scale(scale: Any, n: float) -> None:
    found = byov.kl_scale(scale, 50_000, 1_000)
    assert found == n
    assert isinstance(found, float)


@pytest.mark.parametrize(
    ("scale", "sentence"),
    [(scale, "'dataset', 'parameters', 'none' or a number") for scale in ("batch", None, True, [1])]
    + [(scale, "kl_scale must be above 0") for scale in (0, -1.0, float("nan"), "dataset")],
)
def test_a_bad_kl_scale_is_refused(scale: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        byov.kl_scale(scale, 0, 10)


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_held_apart_components_have_the_mean_of_their_gradients_and_a_share_of_the_rest(share: float) -> None:
    model = byov.bayesianize(nn.Linear(3, 2), byov.ECMP(4, spread=0.5))
    components = model.factors[0].get_parameter("components")
    before = components.detach().clone()
    model(torch.randn(5, 3)).square().mean().backward()
    gradient = components.grad.clone()  # type: ignore[union-attr]
    byov.hold_apart(model, share)
    mean = gradient.mean(0)
    torch.testing.assert_close(components.grad, mean + share * (gradient - mean))
    torch.optim.SGD(model.parameters(), 0.1).step()
    if share == 0:
        torch.testing.assert_close(components - components[:1], before - before[:1])
        assert not torch.equal(components, before)


def test_what_cannot_be_held_apart_is_refused() -> None:
    with pytest.raises(ValueError, match="has no components"):
        byov.hold_apart(byov.bayesianize(nn.Linear(3, 2), byov.Gaussian()), 0.2)
    with pytest.raises(TypeError, match="of a BayesianModule, not for Linear"):
        byov.hold_apart(nn.Linear(3, 2), 0.2)  # type: ignore[arg-type]
    model = byov.bayesianize(nn.Linear(3, 2), byov.EMP(2))
    byov.hold_apart(model, 0.2)  # without gradients there is nothing to scale
    for share in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="at least 0"):
            byov.hold_apart(model, share)
