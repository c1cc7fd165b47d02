"""The mean-field Gaussian: its KL against torch.distributions, with its gradient, and how it draws."""

import copy
from typing import Any

import pytest
import torch
from scipy import stats
from small_networks import mlp, seeded, shake
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence

import byov
from byov.posterior import Family, FullGaussian, KroneckerGaussian

from .cell import close

Named = dict[str, Tensor]


def make(log_var: float = -2.0) -> byov.BayesianModule:
    model = byov.bayesianize(mlp(), byov.Gaussian(log_var))
    shake(model, 0.5)
    return model


def reference(model: byov.BayesianModule, mean: Named, std: Named) -> Tensor:
    """Σ KL(q ‖ p) by torch.distributions, in float64."""
    mu, sigma = model.mean(), model.std()
    return torch.stack(
        [
            kl_divergence(Normal(mu[name].double(), sigma[name].double()), Normal(mean[name], std[name])).sum()
            for name in mu
        ]
    ).sum()


def by_name(model: byov.BayesianModule, value: float) -> Named:
    return {name: torch.full_like(m, value, dtype=torch.float64) for name, m in model.mean().items()}


def prior_of(kind: Any, model: byov.BayesianModule) -> tuple[byov.posterior.Prior | None, Named, Named]:
    """A prior, and its moments by name: N(0, 1) by default, numbers, tensors by name, or a teacher's."""
    if kind is None or isinstance(kind, tuple):
        mean, std = kind or (0.0, 1.0)
        return byov.Normal(*kind) if kind else None, by_name(model, mean), by_name(model, std)
    if kind in ("tensors", "rows"):
        named = {name: torch.randn_like(m) for name, m in model.mean().items()}
        wide = {name: torch.rand_like(m) + 0.1 for name, m in named.items()}
        if kind == "rows":  # broadcast over the last dimension
            wide = {name: value[..., :1] for name, value in wide.items()}
        return byov.Normal(named, wide), named, {name: wide[name].expand_as(m) for name, m in named.items()}
    ema, split = byov.EMA(model), model.factors[0].layout.split
    for _ in range(4):
        shake(model, 0.3)
        ema.update(model, 0.8)
    if kind == "teacher-mean":
        return byov.TeacherMean(ema, std=0.6), split(ema.mean(0)), by_name(model, 0.6)
    return byov.TeacherNormal(ema), split(ema.mean(0)), split(ema.variance(0).sqrt())


@pytest.mark.parametrize(
    "kind", [None, (0.0, 1.0), (0.3, 0.05), (-2.0, 10.0), "tensors", "rows", "teacher-mean", "teacher-normal"], ids=str
)
def test_the_kl_and_its_gradient_are_those_of_torch_distributions(kind: Any) -> None:
    model = make()
    prior, mean, std = prior_of(kind, model)
    found, expected = model.kl(prior), reference(model, mean, std)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    roles = list(model.parameters())
    for gradient, right in zip(torch.autograd.grad(found, roles), torch.autograd.grad(expected, roles), strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-5, atol=1e-5)


def test_kl_is_about_four_and_a_half_nats_per_weight_at_the_start() -> None:
    """log σ² starts at −10, whatever the rules that cover a weight; and at what it is told."""
    net = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 3))
    for rules in (byov.Gaussian(), {"0.*": byov.Gaussian(), "*": byov.Gaussian(-10)}):
        per_weight = byov.bayesianize(net, rules).kl().item() / sum(p.numel() for p in net.parameters())
        assert per_weight == pytest.approx(4.5, abs=0.01)
    for std in byov.bayesianize(net, byov.Gaussian(-6.0)).std().values():
        torch.testing.assert_close(std, torch.full_like(std, 0.049787068))


def test_draws_are_normal_and_independent_of_each_other() -> None:
    model = byov.bayesianize(nn.Linear(2, 2, bias=False), byov.Gaussian(0.0))
    noise = (model.sample(2000, seeded(3))["weight"] - model.mean()["weight"]).detach().flatten(1)
    assert stats.kstest(noise.flatten().numpy(), "norm").pvalue > 0.001
    correlation = torch.corrcoef(noise.T) - torch.eye(4)
    assert correlation.abs().max() < 4 / 2000**0.5
    one_after_another = torch.corrcoef(torch.stack([noise[1:].flatten(), noise[:-1].flatten()]))[0, 1]
    assert one_after_another.abs() < 4 / 8000**0.5


def test_a_relative_start_is_a_share_of_each_layers_own_scale() -> None:
    net = nn.Sequential(nn.Linear(30, 20), nn.BatchNorm1d(20), nn.Linear(20, 5, bias=False), nn.Linear(5, 5))
    with torch.no_grad():
        net[2].weight.mul_(100.0)
        for parameter in net[3].parameters():
            parameter.zero_()
    std = byov.bayesianize(net, byov.Gaussian(relative=0.1)).std()
    weights = torch.cat([net[0].weight.flatten(), net[0].bias])
    for name in ("0.weight", "0.bias"):  # a layer's weight and bias have one scale
        torch.testing.assert_close(
            std[name], torch.full_like(std[name], 0.1 * float(weights.detach().square().mean().sqrt()))
        )
    torch.testing.assert_close(std["1.bias"], torch.full_like(std["1.bias"], 0.1 * 0.5**0.5))
    torch.testing.assert_close(
        std["2.weight"], torch.full((5, 20), 0.1 * float(net[2].weight.detach().square().mean().sqrt()))
    )
    everything = torch.cat([parameter.flatten() for parameter in net.parameters()]).detach()
    torch.testing.assert_close(std["3.weight"], torch.full((5, 5), 0.1 * float(everything.square().mean().sqrt())))


def test_a_relative_start_has_the_dtype_of_the_weights() -> None:
    model = byov.bayesianize(nn.Linear(4000, 3).bfloat16(), byov.Gaussian(relative=0.1))
    assert model.std()["weight"].dtype == torch.bfloat16
    scale = model.mean()["weight"].float().square().mean().sqrt()
    assert float(model.std()["weight"].detach().float().mean()) == pytest.approx(0.1 * float(scale), rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [({"log_var": v}, "finite log_var") for v in (float("nan"), float("inf"), 1e308, "low")]
    + [({"relative": v}, "relative σ above 0") for v in (0.0, -1.0, float("nan"), float("inf"), "some")],
)
def test_bad_starts_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        byov.Gaussian(**arguments)


def test_a_gaussian_without_a_relative_start_is_written_as_it_always_was() -> None:
    assert repr(byov.Gaussian(-11.0)) == "Gaussian(log_var=-11.0)"
    assert repr(byov.Gaussian(relative=0.05)) == "Gaussian(log_var=-10.0, relative=0.05)"


# Correlated Gaussians against torch's MultivariateNormal


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
