"""Small networks of every kind of layer, each with an input and the names of the tensors that are pruned by default."""

from collections.abc import Callable

import small_networks
import torch
from small_networks import Recurrent, shake
from torch import Tensor, nn

import byov


class Residual(nn.Module):
    """A ResNet in small: convolutions, BatchNorm, a shortcut, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.body = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.fc((x + self.body(x)).mean((2, 3)))


class Tied(small_networks.Tied):
    """Weights under two names, and a module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.again = self.mix


class Attention(nn.Module):
    """Parameters of the module itself, of three dimensions and of one, beside a layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.scale = nn.Parameter(torch.rand(8))  # of one dimension, as timm's LayerScale
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm((3, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.token
        return self.norm(self.scale * self.attend(x, x, x)[0])


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], set[str]]] = {
    "residual": (Residual, lambda: torch.randn(5, 1, 6, 6), {"stem.weight", "body.2.weight", "fc.weight"}),
    "tied": (Tied, lambda: torch.randint(11, (4, 5)), {"embed.weight", "mix.weight"}),
    "lstm": (Recurrent, lambda: torch.randn(4, 6), {"lstm.weight_ih_l0", "lstm.weight_hh_l0", "out.weight"}),
    "attention": (
        Attention,
        lambda: torch.randn(2, 3, 8),
        {"token", "attend.in_proj_weight", "attend.out_proj.weight"},
    ),
}


def bayesian(net: nn.Module) -> byov.BayesianModule:
    """A posterior whose σ differ from weight to weight."""
    model = byov.bayesianize(net, byov.Gaussian(log_var=-4.0))
    shake(model, 1.0)
    return model


def weight_at(net: nn.Module, name: str) -> Tensor:
    prefix, _, leaf = name.rpartition(".")
    return getattr(net.get_submodule(prefix), leaf)
