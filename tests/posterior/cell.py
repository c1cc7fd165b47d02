"""Every family, one of them on one network, and how the tests compare what comes out of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from small_networks import NETWORKS, shake
from timm.layers import DropPath
from torch import Tensor, nn

import byov
from byov.posterior import Family

FAMILIES: list[Family] = [  # a new family is one more line
    byov.Gaussian(),
    byov.Dropout(0.1),
    byov.DropConnect(0.1),
    byov.Ensemble(3),
    byov.EMP(3),
    byov.ECMP(3),
    byov.Ensemble(3, learn_probs=True),
    byov.EMP(3, learn_probs=True),
    byov.ECMP(3, learn_probs=True),
    byov.EMP(3, (0.45, 0.45, 0.1), zero=True),
    byov.ECMP(3, zero=True),
    byov.Shared(0.05),
    byov.KroneckerGaussian(),
]


@dataclass
class Cell:
    """One family on one network: the plain network as it was, the model made of it, and a batch."""

    kind: str
    family: Family
    plain: nn.Module
    model: byov.BayesianModule
    x: Tensor

    def spread(self) -> Cell:
        """The same with a posterior that is not where it started: components apart, σ uneven."""
        shake(self.model, 0.1)
        return self

    def without_drop_path(self) -> Cell:
        for module in self.model.net.modules():
            if isinstance(module, DropPath):
                module.eval()
        return self

    def double(self) -> Cell:
        """In float64, where a sum's order does not show."""
        self.plain.double(), self.model.double()
        self.x = self.x.double() if self.x.is_floating_point() else self.x
        return self

    def at(self, tensors: dict[str, Tensor]) -> nn.Module:
        """The plain network with these tensors: the reference that knows nothing of this library."""
        net = copy.deepcopy(self.plain).train(self.model.training)
        net.load_state_dict({**net.state_dict(), **tensors})
        return net


def trained(kind: str) -> tuple[nn.Module, Tensor]:
    """A network that has seen a batch, and a batch."""
    make, batch = NETWORKS[kind]
    plain, x = make(), batch()
    shake(plain)
    plain.train()(x)
    return plain, x


def call(model: nn.Module, x: Tensor, seed: int = 5) -> Tensor:
    """A call with the network's own randomness (drop-path) pinned."""
    torch.manual_seed(seed)
    return model(x)


def snapshot(module: nn.Module) -> dict[str, Any]:
    return copy.deepcopy(module.state_dict())


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for key in a:
        assert torch.equal(a[key], b[key]), key


def close(a: Tensor, b: Tensor, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def loss(out: Tensor) -> Tensor:
    return torch.sin(3.0 * out.flatten(1)).sum()  # neither symmetric nor linear in the output


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
