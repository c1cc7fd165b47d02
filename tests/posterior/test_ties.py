"""Weights under two names, and modules under two names, for every family."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import byov
from byov.posterior import Family

from .cell import Cell, close, loss
from .networks import Tied


class TestTies:
    """Tied weights stay tied: one posterior, one draw, one gradient."""

    @pytest.fixture
    def kind(self) -> str:
        return "tied"

    def test_one_tensor_under_both_names(self, cell: Cell) -> None:
        for noise in (None, cell.model.noise()):
            tensors = cell.model.tensors(noise)
            assert tensors["embed.weight"] is tensors["out.weight"]
        assert cell.model.covered().count("embed.weight") == 1
        assert "out.weight" not in cell.model.covered()
        weights = 11 * 6 + 6 * 6 + 6 + 11
        roles = {name: role for name, role in cell.model.named_parameters() if not name.endswith("logits")}
        assert all(role.shape[-1] == weights for role in roles.values())  # logits are the layers', not the weights'

    def test_the_plain_network_stays_tied_after_loading(self, cell: Cell) -> None:
        points = cell.spread().model.point_state_dict()
        assert torch.equal(points["embed.weight"], points["out.weight"])
        net = Tied()
        net.load_state_dict(points, strict=True)
        assert net.out.weight is net.embed.weight
        close(net(cell.x), cell.model.eval()(cell.x))

    def test_gradients_from_both_uses_meet(self, cell: Cell) -> None:
        model = cell.spread().model.eval()
        noise = model.noise()
        with model.draw(noise=noise):
            loss(model(cell.x)).backward()
        untied = model.tensors(noise)
        untied = {**untied, "embed.weight": untied["embed.weight"].detach().requires_grad_()}
        untied["out.weight"] = untied["embed.weight"].detach().clone().requires_grad_()
        out = torch.tanh(
            nn.functional.linear(
                nn.functional.embedding(cell.x, untied["embed.weight"]), untied["mix.weight"], untied["mix.bias"]
            )
        )
        loss(nn.functional.linear(out, untied["out.weight"], untied["out.bias"])).backward()
        total = untied["embed.weight"].grad + untied["out.weight"].grad
        role = next(iter(dict(model.named_parameters()).values()))
        drawn = model.tensors(noise)["embed.weight"]
        (expected,) = torch.autograd.grad(drawn, role, total)
        at = model.factors[0].layout.split(expected)["embed.weight"]
        assert at.abs().max() > 1e-3
        close(model.factors[0].layout.split(role.grad)["embed.weight"], at)


class SharedModule(nn.Module):
    """One module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))
        self.again = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.again(torch.relu(self.first(x)))


def test_a_module_that_occurs_twice(family: Family) -> None:
    """`functional_call` restores such a module wrongly if it is handed its tensors under both names."""
    plain, x = SharedModule(), torch.randn(6, 5)
    model = byov.bayesianize(plain, family)
    keys = set(model.state_dict())
    model(x)
    assert set(model.state_dict()) == keys
    assert list(model.net.parameters()) == []
    points = model.point_state_dict()
    assert list(points) == list(plain.state_dict())
    plain.load_state_dict(points, strict=True)
    close(plain.eval()(x), model.eval()(x))
