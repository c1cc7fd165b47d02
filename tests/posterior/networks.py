"""The families and the small networks that the tests of q(θ) run over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer
from torchvision.models.resnet import BasicBlock, ResNet

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
]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


class NarrowResNet(ResNet):
    """torchvision's resnet with one block per stage and an eighth of the channels: the same kinds of layer."""

    def __init__(self) -> None:
        super().__init__(BasicBlock, [1, 1, 1, 1], num_classes=3)
        self.fc = nn.Linear(64, 3)

    def _make_layer(self, block: Any, planes: int, *args: Any, **kwargs: Any) -> nn.Sequential:
        return super()._make_layer(block, planes // 8, *args, **kwargs)


def vision_transformer() -> nn.Module:
    """torchvision's, with nn.MultiheadAttention."""
    return VisionTransformer(
        image_size=16, patch_size=8, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=16, num_classes=3
    )


def timm_vit() -> nn.Module:
    """timm's, with drop-path: randomness of the network's own."""
    return timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=8,
        depth=2,
        embed_dim=24,
        num_heads=3,
        num_classes=3,
        drop_path_rate=0.5,
    )


class Tied(nn.Module):
    """A language model in small: the output layer reads the embedding's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.mix = nn.Linear(6, 6)
        self.out = nn.Linear(6, 11)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.mix(self.embed(tokens))))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp-batchnorm": (mlp, lambda: torch.randn(6, 6)),
    "torchvision-resnet": (NarrowResNet, lambda: torch.randn(4, 3, 32, 32)),
    "torchvision-vit": (vision_transformer, lambda: torch.randn(4, 3, 16, 16)),
    "timm-vit": (timm_vit, lambda: torch.randn(4, 3, 32, 32)),
    "tied": (Tied, lambda: torch.randint(11, (4, 5))),
}


def shake(module: nn.Module, by: float = 0.05) -> None:
    """Move every parameter a little: components that differ, heads that are not zero."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=by)


def trained(kind: str) -> tuple[nn.Module, Tensor]:
    """A network that has seen a batch, and a batch."""
    make, batch = NETWORKS[kind]
    plain, x = make(), batch()
    shake(plain)
    plain.train()(x)
    return plain, x
