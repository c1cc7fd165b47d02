"""The mean-field Gaussian: its KL against torch.distributions and Monte Carlo, and the moments of its draws."""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Generator, Tensor, nn
from torch.distributions import Normal, kl_divergence

import byov

from .networks import shake


def make(log_var: float = -2.0) -> byov.BayesianModule:
    model = byov.bayesianize(nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2)), byov.Gaussian(log_var))
    shake(model, 0.5)
    return model


def q(model: byov.BayesianModule) -> dict[str, Normal]:
    mean, std = model.mean(), model.std()
    return {name: Normal(mean[name].double(), std[name].double()) for name in mean}


def reference(model: byov.BayesianModule, mean: dict[str, Tensor], std: dict[str, Tensor]) -> float:
    """Σ KL(q ‖ p) by torch.distributions, in float64."""
    total = 0.0
    for name, posterior in q(model).items():
        prior = Normal(mean[name].double(), std[name].double())
        total += kl_divergence(posterior, prior).sum().item()
    return total


def by_name(model: byov.BayesianModule, value: float) -> dict[str, Tensor]:
    return {name: torch.full_like(m, value) for name, m in model.mean().items()}


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.3, 0.05), (-2.0, 10.0)])
def test_kl_to_a_number(mean: float, std: float) -> None:
    model = make()
    expected = reference(model, by_name(model, mean), by_name(model, std))
    assert model.kl(byov.Normal(mean, std)).item() == pytest.approx(expected, rel=1e-6)


def test_kl_defaults_to_the_standard_normal() -> None:
    model = make()
    assert model.kl().item() == pytest.approx(reference(model, by_name(model, 0), by_name(model, 1)), rel=1e-6)


def test_kl_to_tensors_by_name() -> None:
    model = make()
    mean = {name: torch.randn_like(m) for name, m in model.mean().items()}
    std = {name: torch.rand_like(m) + 0.1 for name, m in model.mean().items()}
    assert model.kl(byov.Normal(mean, std)).item() == pytest.approx(reference(model, mean, std), rel=1e-6)
    rows = {name: value[..., :1] for name, value in std.items()}  # broadcast over the last dimension
    spread = {name: value.expand_as(mean[name]) for name, value in rows.items()}
    assert model.kl(byov.Normal(mean, rows)).item() == pytest.approx(reference(model, mean, spread), rel=1e-6)


@pytest.mark.parametrize("kind", [byov.TeacherMean, byov.TeacherNormal])
def test_kl_to_a_teacher(kind: type) -> None:
    model = make()
    ema = byov.EMA(model)
    for _ in range(4):
        shake(model, 0.3)
        ema.update(model, 0.8)
    split = model.factors[0].layout.split
    std = split(ema.variance(0).sqrt()) if kind is byov.TeacherNormal else by_name(model, 1.0)
    expected = reference(model, split(ema.mean(0)), std)
    assert model.kl(kind(ema)).item() == pytest.approx(expected, rel=1e-6)


def test_kl_to_itself_is_nothing() -> None:
    model = make()
    assert model.kl(byov.Normal(model.mean(), model.std())).abs().item() < 1e-4 * len(model.covered())


def test_kl_is_what_monte_carlo_says() -> None:
    """E_q[log q − log p] over 2,000 draws; the tolerance is four standard errors."""
    model, prior = make(), Normal(0.2, 0.7)
    draws = model.sample(2000, Generator().manual_seed(1))
    gap = torch.zeros(2000, dtype=torch.float64)
    for name, posterior in q(model).items():
        theta = draws[name].double()
        gap += (posterior.log_prob(theta) - prior.log_prob(theta)).flatten(1).sum(1)
    error = (gap.std() / len(gap) ** 0.5).item()
    kl = model.kl(byov.Normal(0.2, 0.7)).item()
    assert abs(gap.mean().item() - kl) < 4 * error
    assert error < 0.01 * kl


def test_kl_is_about_four_and_a_half_nats_per_weight_at_the_start() -> None:
    net = nn.Linear(100, 100)
    per_weight = byov.bayesianize(net, byov.Gaussian()).kl().item() / sum(p.numel() for p in net.parameters())
    assert per_weight == pytest.approx(4.5, abs=0.01)


def test_kl_does_not_depend_on_how_the_network_is_cut() -> None:
    layers = [nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(6, 3)]
    flat = nn.Sequential(*layers)
    nested = nn.Sequential(nn.Sequential(nn.Sequential(layers[0]), layers[1]), layers[2])
    expected = byov.bayesianize(flat, byov.Gaussian()).kl().item()
    assert byov.bayesianize(nested, byov.Gaussian()).kl().item() == pytest.approx(expected, rel=1e-6)
    parts = [byov.bayesianize(layer, byov.Gaussian()).kl().item() for layer in layers]
    assert sum(parts) == pytest.approx(expected, rel=1e-6)


def test_kl_does_not_depend_on_the_number_of_rules() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 6), nn.Linear(6, 3))
    expected = byov.bayesianize(net, byov.Gaussian()).kl().item()
    same = byov.bayesianize(net, {"0.*": byov.Gaussian(), "1.*": byov.Gaussian(), "*": byov.Gaussian()})
    assert len(same.q) == 1  # equal families are one factor
    assert same.kl().item() == pytest.approx(expected, rel=1e-6)
    several = byov.bayesianize(net, {"0.*": byov.Gaussian(-9), "*.weight": byov.Gaussian(-8), "*": byov.Gaussian(-7)})
    assert len(several.q) == 3
    with torch.no_grad():
        for factor in several.factors:
            factor.log_var.fill_(-10)
    assert several.kl().item() == pytest.approx(expected, rel=1e-6)


def test_draws_have_the_posterior_s_mean_and_variance() -> None:
    """Squared z-scores of the sample means, and the sample variances, are χ² for the right posterior."""
    model, n = make(), 1000
    draws = model.sample(n, Generator().manual_seed(2))
    z_squared, scaled, weights = 0.0, 0.0, 0
    for name, posterior in q(model).items():
        theta = draws[name].detach().double()
        z_squared += (((theta.mean(0) - posterior.mean) / (posterior.stddev / n**0.5)) ** 2).sum().item()
        scaled += ((n - 1) * theta.var(0) / posterior.variance).sum().item()
        weights += posterior.mean.numel()
    assert 0.001 < stats.chi2.cdf(z_squared, weights) < 0.999
    assert 0.001 < stats.chi2.cdf(scaled, weights * (n - 1)) < 0.999


def test_draws_are_normal_and_independent_of_each_other() -> None:
    model = byov.bayesianize(nn.Linear(2, 2, bias=False), byov.Gaussian(0.0))
    noise = (model.sample(2000, Generator().manual_seed(3))["weight"] - model.mean()["weight"]).detach().flatten(1)
    assert stats.kstest(noise.flatten().numpy(), "norm").pvalue > 0.001
    correlation = torch.corrcoef(noise.T) - torch.eye(4)
    assert correlation.abs().max() < 4 / 2000**0.5
    one_after_another = torch.corrcoef(torch.stack([noise[1:].flatten(), noise[:-1].flatten()]))[0, 1]
    assert one_after_another.abs() < 4 / 8000**0.5


def test_a_draw_is_the_mean_plus_sigma_epsilon() -> None:
    model = make()
    noise = model.noise(Generator().manual_seed(4))
    eps = model.factors[0].layout.split(noise[0]["eps"])
    mean, std = model.mean(), model.std()
    for name, theta in model.sample(1, Generator().manual_seed(4)).items():
        torch.testing.assert_close(theta[0], mean[name] + std[name] * eps[name])


def test_log_var_starts_where_it_is_told() -> None:
    for name, std in byov.bayesianize(nn.Linear(2, 2), byov.Gaussian(-6.0)).std().items():
        torch.testing.assert_close(std, torch.full_like(std, 0.049787068), msg=name)


@pytest.mark.parametrize("log_var", [float("nan"), float("inf"), "low"])
def test_a_log_var_must_be_finite(log_var: float) -> None:
    with pytest.raises(ValueError, match="finite log_var"):
        byov.Gaussian(log_var)


def prior_of(kind: str, model: byov.BayesianModule) -> byov.posterior.Prior:
    """Each of the paper's priors away from N(0, 1), and one by name."""
    if kind == "normal":
        return byov.Normal(0.4, 0.3)
    if kind == "by name":
        mean = {name: torch.randn_like(m) for name, m in model.mean().items()}
        return byov.Normal(mean, {name: torch.rand_like(m) + 0.1 for name, m in model.mean().items()})
    ema = byov.EMA(model)
    for _ in range(4):
        shake(model, 0.3)
        ema.update(model, 0.8)
    return byov.TeacherMean(ema, std=0.6) if kind == "teacher-mean" else byov.TeacherNormal(ema)


@pytest.mark.parametrize("kind", ["normal", "by name", "teacher-mean", "teacher-normal"])
def test_the_gradient_of_the_kl_by_hand(kind: str) -> None:
    """∂KL/∂μ = (μ − m)/s² and ∂KL/∂ρ = ½(σ²/s² − 1), for every prior."""
    model = make()
    prior = prior_of(kind, model)
    mean, std = prior.moments(0, model.factors[0].layout)
    mu, log_var = (model.factors[0].get_parameter(role) for role in ("mean", "log_var"))
    model.kl(prior).backward()
    torch.testing.assert_close(mu.grad, ((mu - mean) / std**2).detach())
    torch.testing.assert_close(log_var.grad, (0.5 * (log_var.exp() / std**2 - 1)).detach())


def test_the_kl_of_a_float64_model_is_in_float64() -> None:
    model = make().double()
    assert model.kl().dtype == torch.float64
    assert model.kl().item() == pytest.approx(reference(model, by_name(model, 0), by_name(model, 1)), rel=1e-14)
    assert make().to(torch.bfloat16).kl().dtype == torch.float32
