"""The objective  loss + β·KL/N:  β over training, the choice of N, and how fast each part of q(θ) learns."""

from __future__ import annotations

from math import cos, isfinite, pi, sqrt
from typing import Any, Literal

import torch
from torch import Tensor, nn

from byov.posterior.module import BayesianModule
from byov.posterior.prior import Prior

Schedule = Literal["cosine", "linear", "constant"]

NOISE = 0.01
"""The most that the noise of a posterior may cost of the loss, where it would cost more than the ELBO is worth."""

MANY = 3
"""Gaussian weights for each example. With 2.4 of them the ELBO halved the calibration error of a head
(results/newsgroups); with 18 it cost a network of convolutions a fifth of its accuracy (results/defaults)."""

LOG_VAR_EPS = 1e-15
"""Adam's ε for ρ: at its default, 1e-8, a pull of β/2N would hardly move it."""


def beta(step: int, total: int, end: float = 1.0, start: float = 0.0, schedule: Schedule = "cosine") -> float:
    """Compute β at `step` of `total`: from `start` to `end` along one half-cosine, or linearly, or always `end`."""
    if total < 1:
        raise ValueError(f"A schedule needs at least one step, not {total}.")
    if start < 0 or end < 0:
        raise ValueError(f"β is at least 0, not {min(start, end)}.")
    done = min(max(step / total, 0.0), 1.0)
    if schedule == "constant":
        return end
    if schedule == "linear":
        return start + (end - start) * done
    if schedule == "cosine":
        return end + (start - end) * (1.0 + cos(pi * done)) / 2.0
    raise ValueError(f"A β schedule is 'cosine', 'linear' or 'constant', not {schedule!r}.")


def kl_scale(scale: Literal["dataset", "parameters", "none"] | float, dataset: int, parameters: int) -> float:
    """Return N, by which the KL is divided: the data set's size, the number of covered weights, 1, or a given number.

    It decides everything (at ρ = −10 the KL to N(0, 1) is about 4.5 nats per weight), so write it beside every result.
    """
    known: dict[object, float] = {"dataset": float(dataset), "parameters": float(parameters), "none": 1.0}
    number = known.get(scale, scale) if isinstance(scale, str) else scale
    if not isinstance(number, int | float) or isinstance(number, bool):
        raise ValueError(f"kl_scale is 'dataset', 'parameters', 'none' or a number, not {scale!r}.")
    if not number > 0:
        raise ValueError(f"kl_scale must be above 0, not {float(number)}.")
    return float(number)


def elbo(loss: Tensor, model: nn.Module, n: float, beta: float | Tensor = 1.0, prior: Prior | None = None) -> Tensor:
    """Return loss + β·KL/n, the negative ELBO per example: what to minimise.

    Args:
        loss: the average negative log-likelihood of a minibatch under one draw, such as a cross-entropy.
        model: a BayesianModule, or a module that holds some, such as a compiled or a DDP one.
        n: the number of training examples, `len(data)`: the KL is paid once for all of them.
        beta: 1 is Bayes; below it the posterior is colder, above warmer.
        prior: by default the one that `bayesianize` was given.

    Example:
        >>> loss = byov.elbo(F.cross_entropy(model(x), y), model, n=len(data))
    """
    if not n > 0:
        raise ValueError(f"n is the number of training examples, not {n}.")
    return loss + beta / n * torch.stack([each.kl(prior) for each in _posteriors(model)]).sum()


def usual_n(examples: int, weights: int) -> float:
    """Return the N of β·KL/N, β = 1, for who has no opinion; `weights` is how many have a Gaussian posterior.

    The number of examples, which is the ELBO. But of more than `MANY` weights for each example the ELBO leaves little
    but the prior. There N is 50 for each weight: in equilibrium the noise costs at most 1/2N of loss per weight,
    together 0.01, whatever the network and the data.
    """
    return weights / (2.0 * NOISE) if weights > MANY * examples else float(max(examples, 1))


def usual_beta(model: nn.Module, examples: int) -> float:
    """Return the β of `byov.elbo(loss, model, n=examples, beta=…)` that `usual_n` comes to: 1, or 0.02·n/P.

    Example:
        >>> beta = byov.posterior.usual_beta(model, len(data))
        >>> loss = byov.elbo(F.cross_entropy(model(x), y), model, n=len(data), beta=beta)
    """
    return max(examples, 1) / usual_n(examples, gaussian_weights(model))


def gaussian_weights(model: nn.Module) -> int:
    """Count the weights with a Gaussian posterior of their own σ."""
    found = [module for module in model.modules() if isinstance(module, BayesianModule)]
    return sum(f.layout.numel for each in found for f in each.factors if "log_var" in f.roles)


def log_var_rate(steps: int) -> float:
    """Return the rate at which Adam should move ρ = log σ² in a training of so many steps: 1/√steps.

    A gradient of ρ is mostly noise: the noise of a minibatch times that of the draw. Adam makes each step about as long
    as the rate, so noise alone carries ρ by rate·√steps = 1, which is a factor of 1.6 in σ, while a steady pull can
    carry it by √steps. It is a rate of its own, whatever moves μ.
    """
    if steps < 1:
        raise ValueError(f"A training has at least one step, not {steps}.")
    return 1.0 / sqrt(steps)


def parameter_groups(model: nn.Module, lr: float, steps: int = 1000) -> list[dict[str, Any]]:
    """Return groups for Adam or AdamW in which σ learns as fast as μ does: `Adam(byov.parameter_groups(model, 1e-3))`.

    Adam moves every parameter by about its rate per step. What suits a weight is too slow for ρ = log σ², whose way is
    several units long. So ρ has a group of its own: the rate of `log_var_rate(steps)`, no decay, whose zero would be
    σ = 1, and an ε below its gradients, which are as small as β/n.
    """
    rho = [p for name, p in model.named_parameters() if p.requires_grad and name.rpartition(".")[2] == "log_var"]
    held = {id(p) for p in rho}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p.requires_grad and id(p) not in held], "lr": lr},
        {"params": rho, "lr": log_var_rate(steps), "weight_decay": 0.0, "eps": LOG_VAR_EPS},
    ]
    return [group for group in groups if group["params"]]


def _posteriors(model: nn.Module) -> list[BayesianModule]:
    found = [module for module in model.modules() if isinstance(module, BayesianModule)]
    if not found:
        raise TypeError(f"{type(model).__name__} has no posterior: give the network to byov.bayesianize first.")
    return found


@torch.no_grad()
def hold_apart(model: BayesianModule, share: float) -> None:
    """Scale how the gradients of a mixture's components differ from their mean; call it between `backward` and `step`.

    A step reaches one component in K. Its gradient g is g/K for the mean of all, and the rest tells it from the others.
    With `share` 0 all components take the same step, and their distance stays what they started with; with 1 nothing
    changes. In between, the mean learns as an unpatched weight would, and the components slowly of their own.
    """
    if not isinstance(model, BayesianModule):
        raise TypeError(f"hold_apart is for the components of a BayesianModule, not for {type(model).__name__}.")
    if not (isfinite(share) and share >= 0):
        raise ValueError(f"A share of at least 0 of the gradients is kept, not {share}.")
    factors = [factor for factor in model.factors if "components" in factor.roles]
    if not factors:
        raise ValueError("hold_apart is for Ensemble, EMP and ECMP: this model has no components.")
    for factor in factors:
        gradient = factor.get_parameter("components").grad
        if gradient is not None:
            mean = gradient.mean(0, keepdim=True)
            gradient.sub_(mean).mul_(share).add_(mean)
