"""Layer-wise σ and SNR against brute force for every family."""

from typing import Any

import pytest
import torch
from small_networks import shake
from torch import Tensor, nn

import byov
from byov.posterior.layer_statistics import layer_statistics

from .cell import FAMILIES


class Net(nn.Module):
    """Nested layers, and a parameter of the network's own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * self.scale


def brute_force(model: byov.BayesianModule) -> dict[str, tuple[Any, ...]]:
    std, mean = model.std(), model.mean()
    layers: dict[str, list[str]] = {}
    for name in std:
        layers.setdefault(name.rpartition(".")[0], []).append(name)
    found = {}
    for layer, names in layers.items():
        sigma = torch.cat([std[name].double().flatten() for name in names])
        snr = torch.cat([mean[name].double().flatten() for name in names]).abs()[sigma > 0] / sigma[sigma > 0]
        ratios = (snr.mean().item(), snr.max().item()) if len(snr) else (None, None)
        found[layer] = (len(sigma), sigma.mean().item(), sigma.max().item(), *ratios)
    return found


@pytest.mark.parametrize(
    "rules",
    [*FAMILIES, byov.DropConnect(0.2, sigma=0.1), {"*.weight": byov.Gaussian(-4.0), "*": byov.EMP(3, sigma=0.2)}],
    ids=str,
)
def test_every_family_and_a_layer_cut_between_two_against_brute_force(rules: Any) -> None:
    model = byov.bayesianize(Net(), rules)
    shake(model, 0.3)
    found, expected = layer_statistics(model), brute_force(model)
    assert set(found) == {"", "body.0", "body.1", "body.2"}
    for layer, row in expected.items():
        assert tuple(found[layer]) == pytest.approx(row, rel=1e-5), layer


def test_a_weight_without_spread_has_no_ratio() -> None:
    """Dropout never drops a bias: its σ is 0, and its SNR would be infinite."""
    model = byov.bayesianize(nn.Linear(3, 2), {"bias": byov.Dropout(0.5)})
    row = layer_statistics(model)[""]
    assert (row.weights, row.sigma_mean, row.sigma_max, row.snr_mean, row.snr_max) == (2, 0.0, 0.0, None, None)


def test_a_plain_network_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a BayesianModule, not Linear"):
        layer_statistics(nn.Linear(2, 2))
