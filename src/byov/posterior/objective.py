"""The objective  loss + β·KL/N:  the schedule of β, the choice of N, and the learning rates of q(θ)."""

from __future__ import annotations

from math import cos, isfinite, pi, sqrt
from typing import Any, Literal

import torch
from torch import Tensor, nn

from byov.posterior.module import BayesianModule
from byov.posterior.prior import Prior

Schedule = Literal["cosine", "linear", "constant"]

NOISE = 0.01
"""Limit on the loss that the noise of a posterior may cost, if there are too many weights for the ELBO (`MANY`)."""

MANY = 3
"""Gaussian weights per example up to which N is that of the ELBO. With 2.4 the ELBO halved the calibration error of a
head (results/newsgroups); with 18 it cost a convolutional network a fifth of its accuracy (results/defaults)."""

LOG_VAR_EPS = 1e-15
"""Adam's ε for ρ: with the default, 1e-8, a gradient of β/2N would hardly move it."""


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
    """Return N, the divisor of the KL: the data set's size, the number of covered weights, 1, or a given number.

    N decides everything (at ρ = −10 the KL to N(0, 1) is about 4.5 nats per weight), so report it with every result.
    """
    known: dict[object, float] = {"dataset": float(dataset), "parameters": float(parameters), "none": 1.0}
    number = known.get(scale, scale) if isinstance(scale, str) else scale
    if not isinstance(number, int | float) or isinstance(number, bool):
        raise ValueError(f"kl_scale is 'dataset', 'parameters', 'none' or a number, not {scale!r}.")
    if not number > 0:
        raise ValueError(f"kl_scale must be above 0, not {float(number)}.")
    return float(number)


def elbo(loss: Tensor, model: nn.Module, n: float, beta: float | Tensor = 1.0, prior: Prior | None = None) -> Tensor:
    """Return loss + β·KL/n, the negative ELBO per example: the objective to minimise.

    Args:
        loss: the average negative log-likelihood of a minibatch under one draw, such as a cross-entropy.
        model: a BayesianModule, or a module that contains some, such as a compiled or DDP module.
        n: the number of training examples, `len(data)`: the KL counts once for all of them.
        beta: 1 is Bayes; below 1 the posterior is colder, above 1 it is warmer.
        prior: by default the one passed to `bayesianize`.

    Example:
        >>> loss = byov.elbo(F.cross_entropy(model(x), y), model, n=len(data))
    """
    if not n > 0:
        raise ValueError(f"n is the number of training examples and must be above 0, not {n}.")
    return loss + beta / n * torch.stack([each.kl(prior) for each in _posteriors(model)]).sum()


def usual_n(examples: int, weights: int) -> float:
    """Return the default N of β·KL/N at β = 1; `weights` is the number of weights with a Gaussian posterior.

    This is the number of examples, which gives the ELBO. But with more than `MANY` weights per example the ELBO leaves
    little but the prior. Then N is 50 per weight: in equilibrium the noise costs at most 1/2N of loss per weight, 0.01
    in total, whatever the network and the data.
    """
    return weights / (2.0 * NOISE) if weights > MANY * examples else float(max(examples, 1))


def usual_beta(model: nn.Module, examples: int) -> float:
    """Return the β of `byov.elbo(loss, model, n=examples, beta=…)` that is equivalent to `usual_n`: 1, or 0.02·n/P.

    Example:
        >>> beta = byov.posterior.usual_beta(model, len(data))
        >>> loss = byov.elbo(F.cross_entropy(model(x), y), model, n=len(data), beta=beta)
    """
    return max(examples, 1) / usual_n(examples, gaussian_weights(model))


def gaussian_weights(model: nn.Module) -> int:
    """Count the weights whose Gaussian posterior has its own σ."""
    found = [module for module in model.modules() if isinstance(module, BayesianModule)]
    return sum(f.layout.numel for each in found for f in each.factors if "log_var" in f.roles)


def log_var_rate(steps: int) -> float:
    """Return Adam's learning rate for ρ = log σ² in a training of this many steps: 1/√steps.

    The gradient of ρ is mostly noise: the noise of the minibatch times that of the draw. Each Adam step is about as
    long as the rate, so noise alone moves ρ by rate·√steps = 1, a factor of 1.6 in σ, while a steady gradient can move
    it by √steps. This rate does not depend on the rate for μ.
    """
    if steps < 1:
        raise ValueError(f"Training needs at least one step, not {steps}.")
    return 1.0 / sqrt(steps)


def parameter_groups(model: nn.Module, lr: float, steps: int = 1000) -> list[dict[str, Any]]:
    """Return groups for Adam or AdamW in which σ learns as fast as μ does: `Adam(byov.parameter_groups(model, 1e-3))`.

    Adam moves every parameter by about its learning rate per step. A rate that suits weights is too slow for ρ = log
    σ², which has to move by several units. So ρ has its own group, with the rate of `log_var_rate(steps)`, no weight
    decay (it would pull σ towards 1), and an ε below its gradients, which are as small as β/n.
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
        raise TypeError(f"{type(model).__name__} has no posterior: pass the network to byov.bayesianize first.")
    return found


@torch.no_grad()
def hold_apart(model: BayesianModule, share: float) -> None:
    """Scale the differences of components' gradients from their mean; call it between `backward` and `step`.

    Each step reaches one of K components. Its gradient g contributes g/K to the mean of the components, and the rest
    separates it from the others. With `share` 0 all components take the same step and keep their initial distance; with
    1 nothing changes. In between, the mean learns like an unpatched weight, and the components slowly on their own.
    """
    if not isinstance(model, BayesianModule):
        raise TypeError(f"hold_apart is for the components of a BayesianModule, not for {type(model).__name__}.")
    if not (isfinite(share) and share >= 0):
        raise ValueError(f"share must be finite and at least 0, not {share}.")
    factors = [factor for factor in model.factors if "components" in factor.roles]
    if not factors:
        raise ValueError("hold_apart is for Ensemble, EMP and ECMP: this model has no components.")
    for factor in factors:
        gradient = factor.get_parameter("components").grad
        if gradient is not None:
            mean = gradient.mean(0, keepdim=True)
            gradient.sub_(mean).mul_(share).add_(mean)
