"""BYOV: the draws, the teacher, the objective and its priors, and which weights are Bayesian."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from students import images, student
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from byov import models
from byov.posterior import BayesianModule
from byov.ssl.byov import BYOV, Coverage, PriorName, coverage, prior_by_name
from byov.ssl.heads import Student
from byov.ssl.views import Views

SEEN: list[Tensor] = []
ZERO = torch.tensor(0.0)


class Reveal(nn.Module):
    """An encoder that notes the weight it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 6))

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(self.weight.detach().clone())
        return x.flatten(1) @ self.weight


def make(
    net: Student | None = None,
    prior: PriorName = "normal",
    cover: Coverage = "all",
    log_var: float = -4.0,
    kl_scale: float = 100.0,
    std: float = 1.0,
) -> BYOV:
    return BYOV(net or student(), Views(), coverage(cover, log_var), prior_by_name(prior, std), kl_scale, 0.9).train()


def posterior(module: BYOV) -> BayesianModule:
    assert isinstance(module.student, BayesianModule)
    return module.student


def move(module: BYOV) -> None:
    """Another posterior: other means, and not all with one variance."""
    with torch.no_grad():
        for factor in posterior(module).factors:
            factor.mean.add_(0.1 * torch.randn_like(factor.mean))
            factor.log_var.add_(torch.randn_like(factor.log_var))


def reference_kl(module: BYOV, mean: dict[str, Tensor] | float, std: dict[str, Tensor] | float) -> float:
    """Σ over all covered weights by torch.distributions, in float64."""
    model, total = posterior(module), 0.0
    mu, sigma = model.mean(), model.std()
    for name in model.covered():
        m = mean[name] if isinstance(mean, dict) else torch.tensor(mean)
        s = std[name] if isinstance(std, dict) else torch.tensor(std)
        q = Normal(mu[name].detach().double(), sigma[name].detach().double())
        p = Normal(m.double().expand_as(mu[name]), s.double().expand_as(mu[name]))
        total += float(kl_divergence(q, p).sum())
    return total


def test_one_draw_serves_both_views_and_the_teacher_sees_none() -> None:
    student = Student(Reveal(), 6, 10, 5)
    student.encoder_sees_batch = True  # so that each view has a pass of its own
    module = make(student)
    SEEN.clear()
    for _ in range(2):
        module(images(), module.views.draw(10), ZERO)
    first, second, third, fourth, *later = SEEN
    assert len(later) == 4
    mu = posterior(module).mean()["encoder.weight"].detach()
    assert torch.equal(first, second)
    assert float((first - mu).std()) == pytest.approx(0.135, rel=0.2)  # exp(−4/2)
    assert torch.equal(third, mu)
    assert torch.equal(fourth, mu)
    assert torch.equal(later[0], later[1])
    assert not torch.equal(first, later[0])  # the next minibatch has a draw of its own
    assert torch.equal(later[2], mu)


@pytest.mark.parametrize(("beta", "std"), [(0.0, 1.0), (0.3, 0.5), (1.0, 2.0)])
def test_loss_is_ssl_plus_beta_kl_over_n(beta: float, std: float) -> None:
    module = make(kl_scale=37.0, std=std)
    assert all(bool((factor.log_var == -4.0).all()) for factor in posterior(module).factors)  # where variances start
    move(module)
    step = module(images(), module.views.draw(10), torch.tensor(beta))
    true = reference_kl(module, 0.0, std)
    assert float(step.kl) == pytest.approx(true / 37.0, rel=1e-5)
    assert step.loss.item() == pytest.approx(float(step.ssl) + beta * true / 37.0, rel=1e-5)
    assert 0.0 < float(step.ssl) < 8.0


def test_teacher_priors_follow_the_ema() -> None:
    module = make(prior="teacher-mean", std=0.5)
    for step in (0, 30, 60):
        move(module)
        module.update_teacher(step, 100)
        expected = reference_kl(module, module.ema.tensors(module.student), 0.5)
        assert posterior(module).kl().item() == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(reference_kl(module, 0.0, 0.5), rel=1e-3)
    fresh = make(prior="teacher-normal")  # a teacher that has not moved has the floor 10⁻⁶ for a variance
    mean = {name: value.detach() for name, value in posterior(fresh).mean().items()}
    assert posterior(fresh).kl().item() == pytest.approx(reference_kl(fresh, mean, 1e-3), rel=1e-4)


@pytest.mark.parametrize("prior", ["teacher-mean", "teacher-normal"])
def test_teacher_and_prior_are_one_ema_that_covers_the_predictor(prior: PriorName) -> None:
    module = make(prior=prior)
    assert module.ema is posterior(module).prior.ema
    assert "predictor.3.weight" in module.ema.tensors(module.student)
    assert "predictor.3.weight" in posterior(module).covered()
    again = make(prior=prior)
    move(module)
    module.update_teacher(1, 2)
    again.load_state_dict(module.state_dict())
    assert again.ema is posterior(again).prior.ema
    assert torch.equal(again.ema.mean(0), module.ema.mean(0))
    assert torch.equal(posterior(again).kl(), posterior(module).kl())


def test_weights_that_stay_points_are_taught_too() -> None:
    module = make(cover="linear-only")
    old = {name: value.clone() for name, value in module.ema.tensors(module.student).items()}
    points = dict(posterior(module).points())
    assert "encoder.0.weight" in points
    with torch.no_grad():
        for parameter in points.values():
            parameter.add_(1.0)
    module.update_teacher(50, 100)
    new = module.ema.tensors(module.student)
    for name in points:
        torch.testing.assert_close(new[name], old[name] + 0.05)
    step = module(images(), module.views.draw(10), torch.tensor(1.0))
    assert float(step.kl) == pytest.approx(reference_kl(module, 0.0, 1.0) / 100.0, rel=1e-5)  # of no point
    step.loss.backward()
    assert all(p.grad is not None for p in module.parameters())


HEADS = {f"{head}.{leaf}" for head in ("projector", "predictor") for leaf in ("0.weight", "0.bias", "3.weight")}
HEAD_NORMS = {f"{head}.1.{leaf}" for head in ("projector", "predictor") for leaf in ("weight", "bias")}


def both(*layers: str) -> set[str]:
    return {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}


VIT = both(*(f"blocks.{b}.{leaf}" for b in range(4) for leaf in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")))
ATTENTION = both("self_attn.out_proj", "linear1", "linear2") | {"self_attn.in_proj_weight", "self_attn.in_proj_bias"}
TRANSPOSED = (nn.ConvTranspose2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(200, 4))


@pytest.mark.parametrize(
    ("make_encoder", "linear", "loose"),
    [
        (lambda: models.encoder("vit-nano/4", 1, 8)[0], VIT, {"cls_token", "pos_embed"}),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16), ATTENTION, set()),  # weights that are in no nn.Linear
        (lambda: models.encoder("cifar_resnet18", 3, 32)[0], set(), set()),
        (lambda: nn.Sequential(*TRANSPOSED), {"3.weight", "3.bias"}, set()),
    ],
    ids=["vit", "attention", "resnet", "transposed"],
)
def test_coverage_is_exactly_what_it_says(make_encoder: Any, linear: set[str], loose: set[str]) -> None:
    net = Student(make_encoder(), 8, 16, 4)
    linear, loose = ({f"encoder.{name}" for name in names} for names in (linear, loose))
    every = {name for name, _ in net.named_parameters()}
    assert HEADS | HEAD_NORMS | linear | loose <= every
    expected = {"all": every, "no-norm-no-conv": HEADS | linear | loose, "linear-only": HEADS | linear}
    for name, names in expected.items():
        model = posterior(make(net, cover=name))
        assert set(model.covered()) == names
        assert {name for name, _ in model.points()} == every - names


def test_bad_settings_are_told_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="coverage is one of all, no-norm-no-conv, linear-only, norm, not 'none'"):
        coverage("none")
    with pytest.raises(ValueError, match="prior is one of normal, teacher-mean, teacher-normal, not 'flat'"):
        prior_by_name("flat")
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="kl_scale"):
            make(kl_scale=scale)
