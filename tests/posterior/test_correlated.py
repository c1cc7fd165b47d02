"""Correlated Gaussians against torch's MultivariateNormal."""

from __future__ import annotations

import copy

import pytest
import torch
from small_networks import mlp, seeded, shake
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

import byov
from byov.posterior import Family, FullGaussian, KroneckerGaussian

from .cell import close

FAMILIES: list[Family] = [FullGaussian(-2.0), KroneckerGaussian(-2.0)]


@pytest.fixture(params=FAMILIES, ids=repr)
def model(request: pytest.FixtureRequest) -> byov.BayesianModule:
    model = byov.bayesianize(mlp(), {byov.output_layer: request.param}).double()
    shake(model, 0.3)
    return model


def linear_map(model: byov.BayesianModule) -> Tensor:
    """F of θ = μ + F·ε, by what each unit vector draws."""
    factor = model.factors[0]
    units = torch.eye(factor.layout.numel, dtype=torch.float64)
    return torch.stack([factor.flat_draw({"eps": unit}) - factor.flat_mean() for unit in units], 1).detach()


def test_moments_and_kl_are_those_of_the_covariance(model: byov.BayesianModule) -> None:
    factor, spread = model.factors[0], linear_map(model)
    covariance = spread @ spread.mT
    assert covariance.triu(1).abs().max() > 0.01
    close(factor.flat_std(), covariance.diagonal().sqrt(), rtol=1e-10)
    q = MultivariateNormal(factor.flat_mean(), covariance)
    p = MultivariateNormal(torch.full_like(q.loc, 0.1), 0.49 * torch.eye(len(q.loc)).double())
    close(model.kl(byov.Normal(0.1, 0.7)), kl_divergence(q, p), rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_it_starts_as_the_gaussian_does(family: Family) -> None:
    net = mlp()
    model, plain = (byov.bayesianize(net, f).double() for f in (family, byov.Gaussian(-2.0)))
    for name, draw in model.sample(2, seeded()).items():
        close(draw, plain.sample(2, seeded())[name], rtol=1e-6)
    for (name, std), other in zip(model.std().items(), plain.std().values(), strict=True):
        close(std, other, rtol=1e-6), name
    close(model.kl(), plain.kl(), rtol=1e-6)


def test_one_pass_of_the_network_serves_all_draws(model: byov.BayesianModule) -> None:
    x = torch.randn(5, 6).double()
    head, loop = (byov.predict(model, x, 20, strategy=s, generator=seeded()) for s in ("auto", "loop"))
    assert head.strategy == "head"
    close(head.mean, loop.mean, rtol=1e-8)
    assert (head.mean - byov.predict(model.point(), x).mean).abs().max() > 1e-3
    assert byov.predict(model, x, 5, strategy="vmap").samples == 5


def test_the_state_of_a_full_covariance_round_trips_and_it_prunes(model: byov.BayesianModule) -> None:
    other = byov.bayesianize(mlp(), {byov.output_layer: model.factors[0].family}).double()
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    for name, draw in model.sample(2, seeded()).items():
        assert torch.equal(other.sample(2, seeded())[name], draw)
    pruned = byov.prune(model, 0.5)
    assert float((pruned[3].weight == 0).float().mean()) == pytest.approx(0.5, abs=0.1)


def test_bad_input_is_one_sentence() -> None:
    for family in (FullGaussian, KroneckerGaussian):
        with pytest.raises(ValueError, match=r"needs a finite log_var"):
            family(float("inf"))
    with pytest.raises(ValueError, match="full covariance of 40,200 weights does not fit"):
        byov.bayesianize(nn.Linear(200, 200), FullGaussian())
