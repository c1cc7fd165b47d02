"""Theorem 2 (B.4 of the patching paper): the gradient of a single draw is unbiased, over all the draws there are."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import byov
from byov.posterior import Family

from .networks import shake


def unbiased(
    model: byov.BayesianModule,
    leaves: dict[str, Tensor],
    noises: list[tuple[float, dict[str, Tensor]]],
    exact: Tensor,
    x: Tensor,
    y: Tensor,
) -> None:
    """The gradients of single draws, each weighted by its probability, add up to that of the expected loss."""
    assert sum(p for p, _ in noises) == pytest.approx(1.0)
    (role,) = model.parameters()
    average = torch.zeros_like(role)
    for probability, noise in noises:
        model.zero_grad()
        with model.draw(noise=[noise]):
            F.mse_loss(model(x), y).backward()
        average += probability * role.grad
    exact.backward()
    for name, gradient in model.factors[0].layout.split(average).items():
        torch.testing.assert_close(gradient, leaves[name].grad, rtol=1e-10, atol=1e-12)


def double(net: nn.Module, family: Family) -> tuple[byov.BayesianModule, dict[str, Tensor], Tensor, Tensor]:
    """A float64 model with components apart, leaves that hold the same numbers by name, and a batch."""
    model = byov.bayesianize(net.double(), family)
    shake(model, 0.5)
    (role,) = model.parameters()
    leaves = {n: v.detach().clone().requires_grad_() for n, v in model.factors[0].layout.split(role).items()}
    return model, leaves, torch.randn(5, 2, dtype=torch.float64), torch.randn(5, 1, dtype=torch.float64)


def test_emp_s_gradient_is_unbiased() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
    probs = (0.7, 0.3)
    model, leaves, x, y = double(net, byov.EMP(2, probs=probs))
    noises, exact = [], torch.zeros((), dtype=torch.float64)
    for z in product(range(2), repeat=3):
        probability = prod(probs[k] for k in z)
        noises.append((probability, {"z": torch.tensor(z)}))
        h = x
        for layer, k in zip(("0", "2", "4"), z, strict=True):
            h = h @ leaves[f"{layer}.weight"][k].T + leaves[f"{layer}.bias"][k]
            h = h if layer == "4" else torch.tanh(h)
        exact = exact + probability * ((h - y) ** 2).mean()
    unbiased(model, leaves, noises, exact, x, y)


def test_ecmp_s_gradient_is_unbiased() -> None:
    net = nn.Sequential(nn.Linear(2, 1), nn.Tanh(), nn.Linear(1, 1))
    probs = (0.6, 0.4)
    model, leaves, x, y = double(net, byov.ECMP(2, probs=probs))
    noises, exact = [], torch.zeros((), dtype=torch.float64)
    w, b, v, c = (leaves[name] for name in ("0.weight", "0.bias", "2.weight", "2.bias"))
    for z in product(range(2), repeat=5):  # two weights and a bias, a weight and a bias
        probability = prod(probs[k] for k in z)
        noises.append((probability, {"z": torch.tensor(z)}))
        hidden = torch.tanh(x[:, 0] * w[z[0], 0, 0] + x[:, 1] * w[z[1], 0, 1] + b[z[2], 0])
        out = hidden * v[z[3], 0, 0] + c[z[4], 0]
        exact = exact + probability * ((out - y[:, 0]) ** 2).mean()
    unbiased(model, leaves, noises, exact, x, y)


def test_dropout_s_gradient_is_unbiased() -> None:
    net, p = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), 0.3
    model, leaves, x, y = double(net, byov.Dropout(p))
    noises, exact = [], torch.zeros((), dtype=torch.float64)
    for keep in product((False, True), repeat=4):
        probability = prod(1 - p if kept else p for kept in keep)
        noises.append((probability, {"keep": torch.tensor(keep)}))
        mask = torch.tensor(keep, dtype=torch.float64) / (1 - p)
        hidden = torch.tanh(F.linear(x * mask[:2], leaves["0.weight"], leaves["0.bias"]))
        out = F.linear(hidden * mask[2:], leaves["2.weight"], leaves["2.bias"])
        exact = exact + probability * ((out - y) ** 2).mean()
    unbiased(model, leaves, noises, exact, x, y)
