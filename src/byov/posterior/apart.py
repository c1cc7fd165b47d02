"""How fast patches move apart, beside how fast their mean learns."""

from __future__ import annotations

from math import isfinite

import torch

from byov.posterior.module import BayesianModule


@torch.no_grad()
def hold_apart(model: BayesianModule, share: float) -> None:
    """Scale what the gradients of a mixture's components have beside their mean; between `backward` and `step`.

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
