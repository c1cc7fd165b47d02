"""β over training, what N is, and components whose gradients are held apart."""

from collections.abc import Callable
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
    ("scale", "n"), [("dataset", 50_000.0), ("parameters", 1_000.0), ("none", 1.0), (123, 123.0), (0.5, 0.5)]
)
def test_kl_scale(scale: Any, n: float) -> None:
    found = byov.kl_scale(scale, 50_000, 1_000)
    assert found == n
    assert isinstance(found, float)


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_held_apart_components_have_the_mean_of_their_gradients_and_a_share_of_the_rest(share: float) -> None:
    model = byov.bayesianize(nn.Linear(3, 2), byov.ECMP(4, spread=0.5))
    components = model.factors[0].get_parameter("components")
    before = components.detach().clone()
    byov.hold_apart(model, share)  # without gradients there is nothing to scale
    model(torch.randn(5, 3)).square().mean().backward()
    gradient = components.grad.clone()
    byov.hold_apart(model, share)
    mean = gradient.mean(0)
    torch.testing.assert_close(components.grad, mean + share * (gradient - mean))
    torch.optim.SGD(model.parameters(), 0.1).step()
    if share == 0:
        torch.testing.assert_close(components - components[:1], before - before[:1])
        assert not torch.equal(components, before)


def test_elbo_is_loss_plus_the_kl_shared_by_the_examples() -> None:
    model = byov.bayesianize(nn.Linear(3, 2), byov.Gaussian(-4.0), prior=byov.Normal(0.0, 0.5))
    loss = torch.tensor(1.5)
    torch.testing.assert_close(byov.elbo(loss, model, n=50), loss + model.kl() / 50)
    torch.testing.assert_close(byov.elbo(loss, model, n=50, beta=0.1), loss + 0.1 * model.kl() / 50)
    wider = byov.Normal(0.0, 2.0)
    torch.testing.assert_close(byov.elbo(loss, model, 50, torch.tensor(0.3), wider), loss + 0.3 * model.kl(wider) / 50)
    held = nn.Sequential(model, nn.ReLU(), byov.bayesianize(nn.Linear(2, 2), byov.Gaussian()))
    torch.testing.assert_close(byov.elbo(loss, held, n=10), loss + (model.kl() + held[2].kl()) / 10)


LINEAR, POSTERIOR = nn.Linear(3, 2), byov.bayesianize(nn.Linear(3, 2), byov.Gaussian())
PATCHED = byov.bayesianize(nn.Linear(3, 2), byov.EMP(2))
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: byov.beta(0, 0), "at least one step, not 0"),
    (lambda: byov.beta(0, 10, end=-1), "β is at least 0, not -1"),
    (lambda: byov.beta(0, 10, schedule="step"), "'cosine', 'linear' or 'constant', not 'step'"),
    *[(lambda s=s: byov.kl_scale(s, 0, 10), "'dataset', .* or a number") for s in ("batch", None, True, [1])],
    *[(lambda s=s: byov.kl_scale(s, 0, 10), "must be above 0") for s in (0, -1.0, float("nan"), "dataset")],
    (lambda: byov.hold_apart(POSTERIOR, 0.2), "has no components"),
    (lambda: byov.hold_apart(LINEAR, 0.2), "of a BayesianModule, not for Linear"),
    *[(lambda s=s: byov.hold_apart(PATCHED, s), "at least 0") for s in (-0.1, float("nan"))],
    (lambda: byov.elbo(torch.tensor(1.0), LINEAR, n=10), "Linear has no posterior"),
    (lambda: byov.elbo(torch.tensor(1.0), POSTERIOR, n=0), "number of training examples"),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_bad_input_is_refused_in_a_sentence(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        call()


def test_parameter_groups_give_rho_a_rate_and_an_epsilon_of_its_own() -> None:
    model = byov.bayesianize(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), {"0.*": byov.Gaussian()})
    weights, rho = byov.parameter_groups(model, lr=1e-3, steps=400)
    assert [id(p) for p in rho["params"]] == [id(model.factors[0].log_var)]
    assert {id(p) for p in weights["params"]} | {id(model.factors[0].log_var)} == {id(p) for p in model.parameters()}
    assert (weights["lr"], rho["lr"], rho["weight_decay"]) == (1e-3, pytest.approx(0.05), 0.0)
    plain = byov.parameter_groups(nn.Linear(2, 2), lr=0.1)
    assert len(plain) == 1


@pytest.mark.parametrize("held", [True, False])
def test_sigma_reaches_its_equilibrium_under_plain_adam(held: bool) -> None:
    """The closed form of a linear model: σ² = 1/(1 + Σx²/v) where the data hold the weight, else the prior's 1."""
    torch.manual_seed(0)
    n, variance = 200, 0.5
    x = torch.randn(n, 1) if held else torch.zeros(n, 1)
    y = 2.0 * x + variance**0.5 * torch.randn(n, 1)
    model = byov.bayesianize(nn.Linear(1, 1, bias=False), byov.Gaussian(relative=0.05))
    optimizer = torch.optim.Adam(byov.parameter_groups(model, lr=1e-2))
    for _ in range(1000):
        loss = 0.5 * ((model(x) - y) ** 2).mean() / variance
        optimizer.zero_grad()
        byov.elbo(loss, model, n).backward()
        optimizer.step()
    exact = (1.0 + float(x.square().sum()) / variance) ** -0.5
    assert float(model.std()["weight"]) == pytest.approx(exact, rel=0.25)


def test_the_recommended_beta_bounds_what_the_noise_may_cost() -> None:
    small, large = (byov.bayesianize(nn.Linear(width, 10, bias=False), byov.Gaussian()) for width in (10, 1000))
    assert byov.posterior.usual_beta(small, 1000) == 1.0
    beta = byov.posterior.usual_beta(nn.Sequential(large), 100)
    assert beta * 10_000 / (2 * 100) == pytest.approx(0.01)
