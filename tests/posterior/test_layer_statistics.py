"""Layer-wise σ and SNR against brute force for every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import byov
from byov.posterior.layer_statistics import layer_statistics

FAMILIES = [
    byov.Gaussian(-4.0),
    byov.Dropout(0.3),
    byov.DropConnect(0.2, sigma=0.1),
    byov.Ensemble(3, start="reset"),
    byov.EMP(3, sigma=0.05),
    byov.ECMP(3),
]


class Net(nn.Module):
    """Nested layers, and a parameter of the network's own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * self.scale


def perturbed(rules: Any, net: nn.Module | None = None) -> byov.BayesianModule:
    model = byov.bayesianize(net or Net(), rules)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


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


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_every_family_against_brute_force(family: Any) -> None:
    model = perturbed(family)
    found, expected = layer_statistics(model), brute_force(model)
    assert list(found) == ["", "body.0", "body.1", "body.2"]
    for layer, row in expected.items():
        assert tuple(found[layer]) == pytest.approx(row, rel=1e-5), layer


def test_a_layer_cut_between_two_families_is_one_layer() -> None:
    model = perturbed({"*.weight": byov.Gaussian(-4.0), "*.bias": byov.DropConnect(0.5, sigma=0.2)})
    assert len(model.factors) == 2
    found, expected = layer_statistics(model), brute_force(model)
    assert set(found) == set(expected)
    for layer, row in expected.items():
        assert tuple(found[layer]) == pytest.approx(row, rel=1e-5), layer


def test_a_weight_without_spread_has_no_ratio() -> None:
    """Dropout never drops a bias: its σ is 0, and its SNR would be infinite."""
    model = byov.bayesianize(nn.Linear(3, 2), {"bias": byov.Dropout(0.5)})
    row = layer_statistics(model)[""]
    assert (row.weights, row.sigma_mean, row.sigma_max, row.snr_mean, row.snr_max) == (2, 0.0, 0.0, None, None)


def test_the_gaussian_in_closed_form() -> None:
    net = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[3.0, -1.0]]))
    model = byov.bayesianize(net, byov.Gaussian(2 * torch.log(torch.tensor(0.5)).item()))
    assert tuple(layer_statistics(model)[""]) == pytest.approx((2, 0.5, 0.5, 4.0, 6.0), rel=1e-6)


def test_a_plain_network_is_refused() -> None:
    with pytest.raises(TypeError, match="BayesianModule, not of Linear"):
        layer_statistics(nn.Linear(2, 2))  # type: ignore[arg-type]
