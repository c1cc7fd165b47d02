"""What the ensemble family means for the regression network: which network it needs, and what a draw of it is."""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn

from byov.models.mlp import regression_mlp
from byov.posterior import ECMP, EMP, BayesianModule, Dropout, Ensemble, Family, bayesianize, norm_layers
from byov.posterior.random import categorical, stream, uniform

NUMBER = {EMP: 1, ECMP: 2, Dropout: 3, Ensemble: 4}
"""A family's own stream of random numbers, whichever others are trained beside it."""


def check(family: Family) -> None:
    """Refuse what this network does not have, lest a setting be taken and change nothing.

    The members of an explicit ensemble start anew, each from a seed of its own, whichever `start` it names: no network
    is given whose weights "copy", the default, could copy.
    """
    if type(family) not in NUMBER:
        name = type(family).__name__
        raise ValueError(f"The regression network takes EMP, ECMP, Dropout or Ensemble, not {name}.")
    if family.sigma > 0:  # type: ignore[attr-defined]
        raise ValueError(f"The regression network takes families with σ = 0, not {family}.")
    if isinstance(family, Dropout):
        return
    name = type(family).__name__
    starts = "all start at Settings.gamma and 0" if normed(family) else "start anew, each from a seed of its own"
    if family.learn_probs:  # type: ignore[attr-defined]
        raise ValueError(f"The regression network's mixing probabilities are fixed: {name} takes no learn_probs here.")
    if family.spread > 0:  # type: ignore[attr-defined]
        raise ValueError(f"The regression network's components {starts}: {name} takes no spread here.")
    if normed(family) and family.start != "copy":  # type: ignore[attr-defined]
        raise ValueError(f"The regression network's components {starts}: {name} takes no start='reset' here.")


def normed(family: Family) -> bool:
    """EMP and ECMP patch BatchNorm layers; dropout and the explicit ensemble have none (Appendix D.7)."""
    return isinstance(family, EMP | ECMP)


def members(family: Family) -> int:
    """How many networks are trained for it."""
    return family.k if isinstance(family, Ensemble) else 1


def network(family: Family, features: int, hidden: int, targets: int, gamma: float = 0.2) -> nn.Sequential:
    return regression_mlp(features, hidden, targets, norm=normed(family), gamma=gamma)


def model(family: Family, net: nn.Sequential) -> BayesianModule:
    """The same posterior as a BayesianModule: patches on the norms, dropout on the layers, ensembles on everything."""
    if normed(family):
        return bayesianize(net, {norm_layers: family})
    return bayesianize(net, {nn.Linear: family} if isinstance(family, Dropout) else family)


def initial(
    family: Family, seed: int, features: int, hidden: int, targets: int, gamma: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`first`, `second` and `bias` of its networks, each initialised as torch initialises it, from its own seed."""
    parts = []
    for member in range(members(family)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream(seed, NUMBER[type(family)], member))
            net = network(family, features, hidden, targets, gamma)
        layer, output = (m for m in net if isinstance(m, nn.Linear))
        weights = torch.cat([layer.weight, layer.bias[:, None]], 1), output.weight, output.bias[:, None]
        parts.append([weight.detach() for weight in weights])
    first, second, bias = (torch.stack(part) for part in zip(*parts, strict=True))
    return first, second, bias


def assignment(
    family: EMP | ECMP, draws: int, features: int, hidden: int, like: Tensor, generator: Generator
) -> Tensor:
    """Z of equations (4) and (5) for γ₁, β₁, γ₂, β₂: (draws, 2D + 2H), each layer's alike (EMP) or each by itself."""
    if isinstance(family, ECMP):
        return categorical((draws, 2 * features + 2 * hidden), family.mixing, like, generator)
    z = categorical((draws, 2), family.mixing, like, generator)
    return torch.cat([z[:, :1].expand(-1, 2 * features), z[:, 1:].expand(-1, 2 * hidden)], 1)


def factors(family: Dropout, draws: int, features: int, hidden: int, like: Tensor, generator: Generator) -> Tensor:
    """What dropout multiplies each input and each hidden unit by, (draws, D + H): 0 or 1/(1 − p)."""
    keep = uniform((draws, features + hidden), like, generator) >= family.p
    return keep / (1.0 - family.p)
