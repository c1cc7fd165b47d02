"""byov.SWAG: a Gaussian around the average of a network's weights during training.

Maddox et al. 2019, "A simple baseline for Bayesian uncertainty in deep learning": an optimizer with a constant learning
rate moves around the minimum approximately like samples of a posterior. This is their diagonal version, with two
differences. Every step counts, not one per epoch, so that it also works for short trainings. And the average forgets:
it is that of Shamir & Zhang 2013, in which the newest of t values has the weight (η + 1)/(t + η). So about the last
1/(η + 1) of the training counts, whatever its length, and there is no need to choose when averaging starts.
"""

from __future__ import annotations

import copy
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from byov.posterior.bayesianize import bayesianize
from byov.posterior.family import precise
from byov.posterior.gaussian import Gaussian
from byov.posterior.module import BayesianModule
from byov.prediction.inputs import unwrap

SCALE, ETA = 2.0, 7.0
"""Default σ, in standard deviations of the weights during training, and default η of the average. Chosen on held-out
rows of eight small data sets (results/defaults/averaged.py): no worse than the plain network on any, under shift better
on nearly all."""

SMALLEST = 1e-20
"""The variance of a weight that has not moved."""


class SWAG(nn.Module):
    """Follow a network during ordinary training; `posterior()` returns the resulting posterior.

    Calling it calls the network, so `byov.fit(byov.SWAG(net), loader)` trains and follows the network. In your own
    loop, call `update()` after each optimizer step.

    Args:
        net: the network being trained, not a copy of it.
        scale: the posterior's σ, in units of the weights' standard deviation during training; 0 gives their average
            alone.
        eta: η, how fast the average forgets: about the last 1/(η + 1) of training counts.

    Example:
        >>> swag = byov.SWAG(net)
        >>> for x, y in loader:
        ...     F.cross_entropy(net(x), y).backward()
        ...     optimizer.step(), optimizer.zero_grad()
        ...     swag.update()
        >>> model = swag.posterior()
    """

    instead = "A SWAG only follows training and has no posterior of its own: use swag.posterior()."
    """What `byov.predict`, `byov.check` and `byov.bayesianize` say instead of using the plain network inside."""
    mean: Tensor
    variance: Tensor
    steps: Tensor

    def __init__(self, net: nn.Module, scale: float = SCALE, eta: float = ETA) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise TypeError(f"SWAG follows a torch.nn.Module, not {type(net).__name__}.")
        if any(isinstance(module, BayesianModule) for module in net.modules()):
            raise ValueError("The network already has a posterior: SWAG follows a plain one.")
        if any(isinstance(p, nn.parameter.UninitializedParameter) for p in net.parameters()):
            raise ValueError("The network has lazy parameters without a shape: call it once before SWAG.")
        if not any(p.is_floating_point() for p in net.parameters()):
            raise ValueError(f"{type(net).__name__} has no weights for SWAG to follow.")
        for name, value in {"scale": scale, "eta": eta}.items():
            if not (isinstance(value, int | float) and isfinite(value) and value >= 0):
                raise ValueError(f"SWAG's {name} is a number of at least 0, not {value!r}.")
        self.net, self.scale, self.eta = net, scale, eta
        values = self._values()
        self.register_buffer("mean", values.clone())
        self.register_buffer("variance", torch.zeros_like(values))
        self.register_buffer("steps", torch.zeros((), device=values.device))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.net(*args, **kwargs)

    @torch.no_grad()
    def update(self) -> None:
        """Update the averages with the current weights and BatchNorm statistics."""
        values = self._values()
        if self.mean.device != values.device:  # the network was moved on its own
            self.to(values.device)
        self.steps += 1
        share = (self.eta + 1) / (self.steps + self.eta)
        # A mask of −inf that stays has not moved, though −inf less itself is no number.
        moved = torch.where(values == self.mean, 0.0, values - self.mean)
        self.mean.addcmul_(moved, share)
        self.variance.addcmul_(moved.square_(), share).mul_(1 - share)

    @torch.no_grad()
    def posterior(self) -> BayesianModule:
        """Return a network with the posterior N(average, (scale·std)²) over each trainable weight, in eval mode.

        Its BatchNorm statistics are averages too. Frozen parameters stay points. Updates may continue afterwards.
        """
        if self.steps < 1:  # one step is enough for a validation: its posterior is the network itself
            raise ValueError("SWAG has seen 0 training steps: call update() after each step.")
        net = copy.deepcopy(unwrap(self.net))
        for value, average in zip(floating(net).values(), self._apart(self.mean), strict=True):
            value.copy_(average)
        model = bayesianize(net, Gaussian())
        names = floating(net)
        log_variances = dict(
            zip(names, self._apart((self.scale**2 * self.variance).clamp_min(SMALLEST).log()), strict=True)
        )
        for factor in model.factors:
            factor.get_parameter("log_var").copy_(factor.layout.flatten(log_variances))
        model.sigma_is_trained = False
        return model.eval()

    def extra_repr(self) -> str:
        return f"scale={self.scale}, eta={self.eta}"

    def _values(self) -> Tensor:
        """Return all current floating-point weights and statistics in one tensor."""
        return torch.cat([precise(value.detach()).flatten() for value in floating(unwrap(self.net)).values()])

    def _apart(self, flat: Tensor) -> list[Tensor]:
        values = list(floating(unwrap(self.net)).values())
        return [part.view_as(v) for part, v in zip(flat.split([v.numel() for v in values]), values, strict=True)]


def floating(net: nn.Module) -> dict[str, Tensor]:
    """Return a network's floating-point parameters and buffers by name, tied ones once."""
    return {name: value for name, value in (*net.named_parameters(), *net.named_buffers()) if value.is_floating_point()}
