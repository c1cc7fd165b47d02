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
    """Statistics of one layer, that is of one module that owns parameters with a posterior.

    A weight whose σ is 0 (a bias under dropout, say) has no finite signal-to-noise ratio and counts for σ only; where
    a layer has no other weights, its ratios are None.
    """

    weights: int
    sigma_mean: float
    sigma_max: float
    snr_mean: float | None
    snr_max: float | None


@torch.no_grad()
def layer_statistics(model: BayesianModule) -> dict[str, LayerStatistics]:
    """Compute σ and |μ|/σ by the name of the layer, "" for parameters of the network itself; for every family.

    A few reductions over each factor's flat tensors and one copy to the host: nothing waits for the device in between.
    """
    if not isinstance(model, BayesianModule):
        raise TypeError(f"Layer statistics are of a BayesianModule, not of {type(model).__name__}.")
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
    """Compute for each parameter Σσ, max σ, how many σ are above 0, Σ|μ|/σ and max |μ|/σ over those; (5, slots)."""
    mean, std = precise(factor.flat_mean()), precise(factor.flat_std())
    snr = mean.abs().div_(std).nan_to_num_(nan=0.0, posinf=0.0)

    def reduce(flat: Tensor, norm: float, plain: Callable[[Tensor], Tensor]) -> Tensor:
        # Nothing here is negative, so that a sum is a 1-norm and a maximum an ∞-norm: all parts in a few launches.
        parts = flat.split(factor.layout.sizes)
        return torch.stack(torch._foreach_norm(parts, norm) if flat.is_cuda else [plain(part) for part in parts])

    sums = [reduce(flat, 1, torch.sum) for flat in (std, std.sign(), snr)]
    most = [reduce(flat, torch.inf, torch.amax) for flat in (std, snr)]
    return torch.stack([sums[0], most[0], sums[1], sums[2], most[1]])
