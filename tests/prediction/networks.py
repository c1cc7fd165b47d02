"""Small networks of every kind, trained ones, and the prediction by hand that the engine is compared with."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close
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
STRATEGIES = ("loop", "vmap", "auto")
Way = Callable[[Any, Tensor], Tensor]


def seeded(seed: int = 7) -> Generator:
    return Generator().manual_seed(seed)


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


class Recurrent(nn.Module):
    """An LSTM reads its weights from a list of its own, which only its setter keeps up to date."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(6, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x[:, None].expand(-1, 3, -1))[0][:, -1])


def shared() -> nn.Module:
    """One layer in two places."""
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 3))


class Net(nn.Module):
    """A fixed body and a head, which tests make random; any way to use them, and things to count or remember in.

    With `last` what the way gives is the output, so that the head can be all there is to draw.
    """

    def __init__(self, way: Way = lambda net, x: net.head(net.body(x)), last: bool = True) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 6)
        self.way, self.last, self.calls, self.memory = way, last, 0, None
        self.listed, self.named, self.array, self.tensor = [], {"calls": 0}, np.zeros(1), torch.zeros(1)
        self.own, self.own_numpy, self.own_python = seeded(), np.random.default_rng(0), random.Random(0)
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x) if self.last else 2 * self.way(self, x)


HEAD = {"head.*": byov.Gaussian(-1.0)}


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
    model: byov.BayesianModule, x: Tensor | Mapping[str, Tensor], samples: int, seed: int = 7, softmax: bool = True
) -> Tensor:
    """What each draw predicts (S, N, …): a loop that anybody would write, with fresh inputs for every pass."""
    generator, draws = seeded(seed), []
    model.eval()
    for _ in range(samples):
        with torch.no_grad(), model.draw(generator=generator):
            out = model(x.clone()) if isinstance(x, Tensor) else model(**{k: v.clone() for k, v in x.items()})
        draws.append(out.softmax(1, torch.promote_types(out.dtype, torch.float32)) if softmax else out)
    return torch.stack(draws)


def agree(model: byov.BayesianModule, x: Any, strategy: Any = "auto", atol: float = 1e-6) -> byov.Prediction:
    """Predict, and compare with a loop by hand on a copy: the draws, the state afterwards and the inputs."""
    samples, twin, given = 6, copy.deepcopy(model), x.clone()

    def seed() -> None:
        torch.manual_seed(11)
        random.seed(11)
        np.random.seed(11)  # noqa: NPY002 - the global stream is what a network may use

    seed()
    expected = by_hand(twin, x, samples)
    seed()
    found = byov.predict(model, x, samples, strategy, generator=seeded(), keep=True)
    assert_close(found.draws, expected, rtol=0, atol=atol)
    assert_close(dict(model.state_dict()), dict(twin.state_dict()), rtol=0, atol=0)
    assert torch.equal(x, given)
    return found


def same(a: byov.Prediction, b: byov.Prediction, atol: float = 1e-12) -> None:
    for name in ("mean", "std", "entropy", "expected_entropy", "mutual_information"):
        assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=atol)
    assert torch.equal(torch.as_tensor(a.samples), torch.as_tensor(b.samples))


def snapshot(model: nn.Module) -> list[Any]:
    """All that a pass could leave changed: what every module holds, by identity, and the values of the state."""
    found: list[Any] = []
    for module in model.modules():
        for name, value in sorted(vars(module).items()):
            inside = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else [])
            found.append((name, id(value), [(key, id(each)) for key, each in inside]))
    state = model.state_dict()
    return [*found, list(state), [value.tolist() for value in state.values()]]


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
