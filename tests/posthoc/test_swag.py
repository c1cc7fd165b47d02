"""SWAG: closed forms of the average along a path, and what a user does with it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_networks import NETWORKS, mlp
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import byov


def follow(net: nn.Module, steps: int, seed: int = 0, **options: float) -> tuple[byov.SWAG, list[dict[str, Tensor]]]:
    """Move a network's weights and statistics at random; return what followed it, and every state it was in."""
    swag, generator, states = byov.SWAG(net, **options), torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        for value in net.state_dict().values():
            if value.is_floating_point():
                value.add_(torch.randn(value.shape, generator=generator).mul(0.01).abs())
        swag.update()
        states.append(copy.deepcopy(net.state_dict()))
    return swag, states


def weights_of(steps: int, eta: float) -> Tensor:
    """How much each step counts: the product of what each later one leaves of it."""
    shares = [(eta + 1) / (t + eta) for t in range(1, steps + 1)]
    left = [shares[t] * torch.tensor([1 - s for s in shares[t + 1 :]]).double().prod() for t in range(steps)]
    return torch.stack([torch.as_tensor(value, dtype=torch.float64) for value in left])


@settings(max_examples=25, deadline=None)
@given(steps=st.integers(2, 30), eta=st.floats(0, 20), scale=st.floats(0.1, 5))
def test_mean_and_variance_are_those_of_the_path(steps: int, eta: float, scale: float) -> None:
    net = mlp()
    swag, states = follow(net, steps, scale=scale, eta=eta)
    model, weights = swag.posterior(), weights_of(steps, eta)
    assert weights.sum() == pytest.approx(1)
    for name, std in model.std().items():
        path = torch.stack([state[name] for state in states]).double().flatten(1)
        mean = weights @ path
        variance = weights @ (path - mean).square()
        torch.testing.assert_close(model.mean()[name].double().flatten(), mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(std.double().flatten(), scale * variance.sqrt(), rtol=2e-2, atol=1e-6)


def test_about_the_last_eighth_of_a_long_training_counts() -> None:
    weights = weights_of(4000, byov.posthoc.swag.ETA)
    ages = torch.arange(3999, -1, -1) / 4000
    assert float(weights @ ages.double()) == pytest.approx(1 / 9, rel=0.01)  # the mean of Beta(1, η + 1)


@pytest.mark.parametrize("kind", NETWORKS)
def test_its_mean_is_the_network_with_averaged_weights_and_statistics(kind: str) -> None:
    make, batch = NETWORKS[kind]
    net, x = make(), batch()
    net.train()(x)
    before = copy.deepcopy(net.state_dict())
    swag, states = follow(net, 5, eta=0.0)
    reference = make()
    reference.load_state_dict(states[-1])
    for name, value in reference.state_dict().items():
        if value.is_floating_point():
            value.copy_(torch.stack([state[name] for state in states]).mean(0))  # η = 0: all count alike
    model = swag.posterior()
    assert not model.training
    with torch.no_grad():
        torch.testing.assert_close(model(x), reference.eval()(x), rtol=1e-4, atol=1e-5)
    assert any(not torch.equal(before[name], value) for name, value in net.state_dict().items())  # itself, no copy
    with torch.no_grad():
        draws = []
        for _ in range(2):
            with model.draw():
                draws.append(model(x))
    assert not torch.equal(*draws)


def test_scale_zero_is_the_average_alone_and_following_may_go_on() -> None:
    swag, _ = follow(mlp(), 4, scale=0.0)
    model, x = swag.posterior(), torch.randn(3, 6)
    first, second = (draw for draw in byov.predict(model, x, samples=2, keep=True).draws)
    torch.testing.assert_close(first, second)
    swag.update()
    assert int(swag.steps) == 5
    assert swag.posterior() is not model


def test_frozen_weights_stay_points_and_still_ones_are_certain() -> None:
    net = mlp()
    first, *_, last = net.parameters()
    last.requires_grad_(False)
    swag = byov.SWAG(net)
    for _ in range(3):
        first.data.add_(0.1)
        swag.update()
    model = swag.posterior()
    names = [name for name, _ in net.named_parameters()]
    assert names[-1] not in model.covered()
    assert model.std()[names[0]].min() > 0.01
    assert model.std()[names[1]].max() < 1e-9


def test_the_state_round_trips_and_moves_with_the_network() -> None:
    net = mlp()
    swag, _ = follow(net, 4)
    other = byov.SWAG(mlp())
    other.load_state_dict(swag.state_dict())
    torch.testing.assert_close(other.posterior().std(), swag.posterior().std())
    swag.double().update()
    assert swag.posterior().mean()[next(iter(dict(net.named_parameters())))].dtype == torch.float64


def test_under_fit_the_rate_stays_up_so_that_there_is_a_path() -> None:
    torch.manual_seed(0)
    x, net = torch.randn(32, 6), mlp()
    swag, rates = byov.SWAG(net), []

    def watch(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        rates.append(optimizer.param_groups[0]["lr"])

    handle = register_optimizer_step_pre_hook(watch)
    byov.fit(swag, [(x, torch.randint(3, (32,)))] * 40, epochs=1, lr=1e-2, progress=False)
    handle.remove()
    assert rates[0] == 0.0  # a twentieth is warm-up
    assert rates[2:] == [1e-2] * 38


def test_fit_validates_the_average_by_the_user_s_own_loss() -> None:
    torch.manual_seed(0)
    x, y, net = torch.randn(32, 6), torch.randn(32, 3), mlp()

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs - labels).abs()

    swag = byov.SWAG(net)
    history = byov.fit(swag, [(x, y)] * 4, epochs=2, lr=1e-2, validation=[(x, y)], loss=loss, progress=False)
    with torch.no_grad():
        assert loss(swag.posterior()(x), y).mean().item() == pytest.approx(
            history.rows[history.best - 1]["nll"], rel=1e-4
        )


def test_fit_validates_after_the_first_step_too() -> None:
    torch.manual_seed(0)
    x, y, net = torch.randn(32, 6), torch.randint(3, (32,)), mlp()
    swag = byov.SWAG(net)
    history = byov.fit(swag, (x, y), epochs=3, validation=(x, y), lr=1e-2, progress=False)  # one batch an epoch
    assert len(history.rows) == 3
    once = byov.SWAG(net)
    once.update()
    assert torch.equal(once.posterior()(x), net(x))


class Masked(nn.Module):
    """A buffer of −inf, as attention masks are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("mask", torch.tensor([0.0, 0.0, -torch.inf]))

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) + self.mask).softmax(1)


def test_an_infinite_buffer_stays_what_it_is() -> None:
    net, x = Masked(), torch.randn(4, 6)
    swag = byov.SWAG(net)
    for _ in range(3):
        net.linear.weight.data.add_(0.1)
        swag.update()
    model = swag.posterior()
    assert torch.equal(model.net.mask, net.mask)
    assert model(x).isfinite().all()
    assert model.std()["linear.weight"].min() > 0.01


def test_fit_follows_and_keeps_the_likeliest_epoch() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 6)
    y = (x[:, 0] > 0).long()
    net = mlp()
    swag = byov.SWAG(net)
    held = torch.where(torch.arange(64) < 26, y, 1 - y)  # what is learned does not hold there: the first is the best
    history = byov.fit(swag, [(x, y)] * 4, epochs=6, lr=1e-2, validation=[(x, held)], progress=False)
    assert history.best < len(history.rows)
    assert int(swag.steps) == 4 * history.best
    model = swag.posterior()
    probs = byov.predict(model, x, samples=8, generator=torch.Generator().manual_seed(0)).mean
    nll = -probs[torch.arange(64), held].log().mean()
    assert nll == pytest.approx(history.rows[history.best - 1]["nll"], rel=1e-3)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: byov.SWAG(byov.bayesianize(mlp())), "already has a posterior"),
        (lambda: byov.SWAG(mlp(), scale=-1.0), "scale is a number of at least 0, not -1"),
        (lambda: byov.SWAG(mlp(), eta=float("nan")), "eta is a number of at least 0, not nan"),
        (lambda: byov.SWAG(mlp(), scale="wide"), "scale is a number of at least 0, not 'wide'"),
        (lambda: byov.SWAG(nn.ReLU()), "ReLU has no weights"),
        (lambda: byov.SWAG(nn.LazyLinear(3)), "lazy parameters"),
        (lambda: byov.SWAG(mlp()).posterior(), r"has seen 0 training steps: call update\(\)"),
    ],
)
def test_what_it_refuses(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make()
    with pytest.raises(TypeError, match="not str"):
        byov.SWAG("net")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "use",
    [
        byov.bayesianize,
        lambda swag: byov.predict(swag, torch.zeros(2, 4)),
        lambda swag: byov.check(swag, torch.zeros(2, 4)),
    ],
)
def test_it_is_not_taken_for_its_posterior(use: Any) -> None:
    """The plain network of the last step would be used, silently: one draw, no mutual information."""
    with pytest.raises(TypeError, match=r"has no posterior of its own: use swag\.posterior\(\)"):
        use(byov.SWAG(mlp()))


def test_its_sigma_has_no_start_to_be_compared_with() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    swag = byov.SWAG(net)
    with torch.no_grad():
        for _ in range(3):
            net[1].weight.add_(0.1 * torch.randn(3, 4))
            swag.update()
    found = byov.check(swag.posterior(), torch.randn(20, 4), torch.randint(3, (20,)), samples=4)
    assert found.moved is None
    assert not any("σ has hardly moved" in sentence for sentence in found.sentences)


def test_nor_has_laplace_s() -> None:
    x, y = torch.randn(30, 4), torch.randint(3, (30,))
    model = byov.laplace(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), (x, y), structure="diag")
    assert byov.check(model, x, y, samples=4).moved is None
