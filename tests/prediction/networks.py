"""Small networks of every kind, trained ones, and the prediction by hand that the engine is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from sklearn.datasets import load_digits
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy
from torchvision.models import VisionTransformer
from torchvision.models.resnet import BasicBlock, ResNet

import byov
from byov.posterior import Family

FAMILIES: list[Family] = [
    byov.Gaussian(log_var=-5.0),
    byov.Dropout(0.2),
    byov.DropConnect(0.2, sigma=0.01),
    byov.Ensemble(3),
    byov.EMP(3, probs=(0.5, 0.3, 0.2)),
    byov.ECMP(3),
]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


class NarrowResNet18(ResNet):
    """torchvision's resnet18 with an eighth of the channels, on 32 px."""

    def __init__(self) -> None:
        super().__init__(BasicBlock, [2, 2, 2, 2], num_classes=3)
        self.fc = nn.Linear(64, 3)

    def _make_layer(self, block: Any, planes: int, *args: Any, **kwargs: Any) -> nn.Sequential:
        return super()._make_layer(block, planes // 8, *args, **kwargs)


def timm_vit() -> nn.Module:
    """With drop-path, which is off in eval mode."""
    return TimmViT(
        img_size=16, patch_size=8, embed_dim=12, depth=2, num_heads=2, num_classes=3, drop_path_rate=0.5, mlp_ratio=2
    )


def torchvision_vit() -> nn.Module:
    return VisionTransformer(
        image_size=16, patch_size=8, num_layers=1, num_heads=2, hidden_dim=12, mlp_dim=16, num_classes=3
    )


class Tied(nn.Module):
    """A language model in small: the output layer reads the embedding's weights; logits are (N, words, length)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.norm = nn.LayerNorm(6)
        self.out = nn.Linear(6, 7)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.norm(self.embed(tokens)))).transpose(1, 2)


class Headed(nn.Module):
    """Features, whatever is done to them, and a head, which alone is random."""

    def __init__(self, between: Callable[[Any, Tensor], Tensor] = lambda net, x: x, width: int = 32) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, width), nn.Tanh()), nn.Linear(width, 3)
        self.between, self.calls, self.cache = between, 0, None

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self, self.body(x)))


def headed(between: Any = None) -> byov.BayesianModule:
    torch.manual_seed(0)
    net = Headed() if between is None else Headed(between)
    return byov.bayesianize(net, {byov.output_layer: byov.Gaussian(-1.0)}).double()


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp-batchnorm": (mlp, lambda: torch.randn(5, 6)),
    "resnet18": (NarrowResNet18, lambda: torch.randn(4, 3, 32, 32)),
    "timm-vit": (timm_vit, lambda: torch.randn(4, 3, 16, 16)),
    "torchvision-vit": (torchvision_vit, lambda: torch.randn(4, 3, 16, 16)),
    "tied": (Tied, lambda: torch.randint(7, (4, 3))),
}


def spread(model: byov.BayesianModule, by: float = 0.1) -> byov.BayesianModule:
    """Move everything that is learned or counted, so that components differ and no statistic is 0 or 1."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=by)
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.rand_like(buffer), alpha=by)
    return model


def by_hand(
    model: byov.BayesianModule, x: Tensor | Mapping[str, Tensor], samples: int, seed: int, softmax: bool = True
) -> Tensor:
    """What each draw predicts (S, N, …): a loop that anybody would write."""
    generator, draws = Generator().manual_seed(seed), []
    model.eval()
    for _ in range(samples):
        with torch.no_grad(), model.draw(generator=generator):
            out = model(x) if isinstance(x, Tensor) else model(**x)
        draws.append(out.softmax(1) if softmax else out)
    return torch.stack(draws)


@cache
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, test images and labels."""
    bunch = load_digits()
    x, y = torch.tensor(bunch.data / 16.0, dtype=torch.float32), torch.tensor(bunch.target)
    return x[:1400], y[:1400], x[1400:], y[1400:]


@cache
def trained(family: Family, steps: int = 300) -> byov.BayesianModule:
    """A digits classifier that has been trained, in train mode."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 10))
    model = byov.bayesianize(net, family)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    x, y, _, _ = digits()
    for _ in range(steps):
        pick = torch.randint(len(x), (128,))
        loss = cross_entropy(model(x[pick]), y[pick]) + 0.1 * model.kl() / len(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model
