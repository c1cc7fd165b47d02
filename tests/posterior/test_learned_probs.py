"""Learned mixing probabilities: what is drawn, the KL's new term, and how far the gradient's estimator is right."""

from collections.abc import Callable
from itertools import product
from math import log, prod

import numpy as np
import pytest
import torch
from scipy import stats
from small_networks import seeded, shake
from torch import Tensor, nn

import byov
from byov.train.optimizers import parameter_groups

KINDS = (byov.Ensemble, byov.EMP, byov.ECMP)


def uneven(net: nn.Module, kind: type, k: int = 3) -> byov.BayesianModule:
    """Components apart and probabilities far from uniform, in float64."""
    torch.manual_seed(3)
    model = byov.bayesianize(net.double(), kind(k, learn_probs=True))
    shake(model, 0.5)
    with torch.no_grad():
        logits = model.factors[0].get_parameter("logits")
        logits.copy_(torch.randn_like(logits))
    return model


def every_draw(model: byov.BayesianModule) -> list[tuple[float, dict[str, Tensor]]]:
    """All assignments there are, each with its probability and the uniform noise in the middle of its share."""
    factor = model.factors[0]
    p = factor.get_parameter("logits").detach().softmax(0)
    if isinstance(factor.family, byov.ECMP):
        p = p[:, factor.layout.layer_cells()]
    middle = p.cumsum(0) - p / 2
    found = []
    for z in product(range(len(p)), repeat=p.shape[1]):
        places = list(zip(z, range(p.shape[1]), strict=True))
        noise = {"u": torch.stack([middle[place] for place in places])}
        found.append((prod(float(p[place]) for place in places), noise))
    return found


def expected_gradients(
    model: byov.BayesianModule, loss: Callable[[Tensor], Tensor], x: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """By parameter: the estimator's expectation, and the gradient of the expected loss, both by enumeration."""
    draws = every_draw(model)
    assert sum(p for p, _ in draws) == pytest.approx(1.0)
    estimated = {name: torch.zeros_like(q) for name, q in model.named_parameters()}
    for p, noise in draws:
        model.zero_grad()
        with model.draw(noise=[noise]):
            loss(model(x)).backward()
        for name, q in model.named_parameters():
            estimated[name] += p * q.grad
    # The loss of every draw times its probability, which the logits steer here in the open.
    model.zero_grad()
    factor, total = model.factors[0], torch.zeros((), dtype=torch.float64)
    probs = factor.get_parameter("logits").softmax(0)
    if isinstance(factor.family, byov.ECMP):
        probs = probs[:, factor.layout.layer_cells()]
    for _, noise in draws:
        z = factor.family.assignment(factor.roles, factor.cells, noise)
        with torch.no_grad():
            theta = factor.family.draw(factor.roles, factor.cells, noise)
        out = torch.func.functional_call(model.net, factor.layout.split(theta), x)
        total = total + probs.gather(0, z[None]).prod() * loss(out).detach()
    total.backward()
    return estimated, {"q.0.logits": factor.get_parameter("logits").grad}


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_unbiased_for_a_loss_that_is_quadratic_in_each_cell(kind: type) -> None:
    """Mean squared error of linear layers: quadratic in any one layer, the others given."""
    net = nn.Linear(2, 1) if kind is byov.ECMP else nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    if kind is byov.Ensemble:
        net = nn.Linear(2, 1)  # of two layers at once, the loss is quartic
    model, x = uneven(net, kind, 2 if kind is byov.ECMP else 3), torch.randn(5, 2, dtype=torch.float64)
    target = torch.randn(5, 1, dtype=torch.float64)
    estimated, exact = expected_gradients(model, lambda out: ((out - target) ** 2).mean(), x)
    assert exact["q.0.logits"].abs().max() > 0.01
    torch.testing.assert_close(estimated["q.0.logits"], exact["q.0.logits"], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_follow_the_probabilities_and_so_do_the_moments(kind: type) -> None:
    model, n = uneven(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), kind), 1000
    factor = model.factors[0]
    p = factor.get_parameter("logits").detach().softmax(0)
    draws, mean, std = model.sample(n, seeded()), model.mean(), model.std()
    components = factor.layout.split(factor.get_parameter("components").detach())
    for layer, name in enumerate(("0.weight", "1.weight")):
        values, centroids = draws[name].detach().flatten(), components[name].flatten()
        counts = [(values == c).sum().item() for c in centroids]
        assert sum(counts) == n
        group = p[:, 0 if kind is byov.Ensemble else layer]
        assert stats.chisquare(counts, (group * n).numpy()).pvalue > 1e-3
        assert abs(values.mean() - mean[name].item()) < 4.5 * std[name].item() / n**0.5
        spread = np.average((centroids.numpy() - mean[name].item()) ** 2, weights=group.numpy()) ** 0.5
        assert std[name].item() == pytest.approx(spread, rel=1e-8)


@pytest.mark.parametrize(("kind", "assignments"), [(byov.Ensemble, (9,)), (byov.EMP, (1, 1)), (byov.ECMP, (6, 3))])
def test_the_kl_gains_the_entropy_of_the_choice(kind: type, assignments: tuple[int, ...]) -> None:
    """Per assignment KL(p ‖ uniform), beside equation (6) under p: one a network, one a layer, one an element."""
    model = uneven(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), kind)
    factor = model.factors[0]
    p = factor.get_parameter("logits").detach().softmax(0)
    numbers = (1,) if kind is byov.Ensemble else assignments
    total = 0.0
    for name, stack in factor.layout.split(factor.get_parameter("components").detach()).items():
        group = p[:, 0 if kind is byov.Ensemble else int(name[0])]
        total += sum(float(pk) * float((c**2).sum()) / 2 for pk, c in zip(group, stack, strict=True))
    for number, group in zip(numbers, p.T, strict=True):
        total += number * sum(float(pk) * (log(float(pk)) + log(3)) for pk in group)
    assert model.kl().item() == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_at_the_start_nothing_but_the_logits_is_new(kind: type) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    fixed, learned = (byov.bayesianize(net, kind(3, spread=0.0, learn_probs=each)) for each in (False, True))
    assert torch.equal(fixed.kl(), learned.kl())
    assert all(torch.equal(fixed.mean()[name], learned.mean()[name]) for name in fixed.mean())
    assert [name for name, _ in fixed.named_parameters()] == ["q.0.components"]
    given = byov.bayesianize(net, kind(3, probs=(0.5, 0.3, 0.2), learn_probs=True))
    p = given.factors[0].get_parameter("logits").softmax(0)
    torch.testing.assert_close(p, torch.tensor([[0.5], [0.3], [0.2]]).expand_as(p))


def test_the_optimizer_neither_decays_nor_adapts_them() -> None:
    model = byov.bayesianize(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), byov.EMP(3, learn_probs=True))
    groups = {group["role"]: group["params"] for group in parameter_groups(model, 0.1)}
    logits = model.factors[0].get_parameter("logits")
    assert any(p is logits for p in groups["excluded"])
    assert not any(p is logits for p in groups["weights"])
