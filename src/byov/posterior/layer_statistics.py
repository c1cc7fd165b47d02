"""Statistics of q(θ) by layer: the mean and the maximum of σ and of |μ|/σ, from the flat tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from byov.posterior.factor import Factor
from byov.posterior.family import precise
from byov.posterior.module import BayesianModule


class LayerStatistics(NamedTuple):
    """Statistics of one layer, that is, of one module that owns parameters with a posterior.

    A weight whose σ is 0 (such as a bias under dropout) has no finite signal-to-noise ratio and counts for σ only. If a
    layer has no other weights, its ratios are None.
    """

    weights: int
    sigma_mean: float
    sigma_max: float
    snr_mean: float | None
    snr_max: float | None


@torch.no_grad()
def layer_statistics(model: BayesianModule) -> dict[str, LayerStatistics]:
    """Compute the statistics of σ and |μ|/σ by layer name, "" for the network's own parameters; for every family.

    It takes a few reductions over each factor's flat tensors and one copy to the host, without other synchronisation.
    """
    if not isinstance(model, BayesianModule):
        raise TypeError(f"layer_statistics takes a BayesianModule, not {type(model).__name__}.")
    rows = torch.cat([_slots(factor) for factor in model.factors], dim=1).tolist()
    slots = [slot for factor in model.factors for slot in factor.layout.slots]
    layers: dict[str, list[int]] = {}
    for i, slot in enumerate(slots):
        layers.setdefault(slot.layer, []).append(i)
    return {
        name: _joined([[row[i] for row in rows] for i in members], [slots[i].numel for i in members])
        for name, members in layers.items()
    }


def _joined(parts: list[list[float]], sizes: list[int]) -> LayerStatistics:
    """Join the sums and maxima of one layer's parameters."""
    sigma, sigma_max, spread, snr, snr_max = zip(*parts, strict=True)
    ratios = (sum(snr) / sum(spread), max(snr_max)) if sum(spread) else (None, None)
    return LayerStatistics(sum(sizes), sum(sigma) / sum(sizes), max(sigma_max), *ratios)


def _slots(factor: Factor) -> Tensor:
    """Compute (5, slots): for each parameter Σσ, max σ, the number of σ > 0, and over these Σ|μ|/σ and max |μ|/σ."""
    mean, std = precise(factor.flat_mean()), precise(factor.flat_std())
    snr = mean.abs().div_(std).nan_to_num_(nan=0.0, posinf=0.0)

    def reduce(flat: Tensor, norm: float, plain: Callable[[Tensor], Tensor]) -> Tensor:
        # No value is negative, so a sum is a 1-norm and a maximum an ∞-norm: a few launches compute all parts.
        parts = flat.split(factor.layout.sizes)
        return torch.stack(torch._foreach_norm(parts, norm) if flat.is_cuda else [plain(part) for part in parts])

    sums = [reduce(flat, 1, torch.sum) for flat in (std, std.sign(), snr)]
    most = [reduce(flat, torch.inf, torch.amax) for flat in (std, snr)]
    return torch.stack([sums[0], most[0], sums[1], sums[2], most[1]])
