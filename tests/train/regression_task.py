"""A task small enough to know every number, for the loop: a line through the pixels of 35 images."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn

from byov.data import Batch
from byov.data.datasets import ImageSet
from byov.train.fabric import make_fabric
from byov.train.loop import Loop, Place
from byov.train.train_config import TrainConfig

CONFIG = TrainConfig(epochs=3, batch=8, lr=0.1, warmup=0, optimizer="sgd", log_every=1, accelerator="cpu", devices=1)
STEPS = 4  # in an epoch: 35 images make four batches of eight


class Out(NamedTuple):
    loss: Tensor
    spread: Tensor


class Line(nn.Module):
    """Regress the mean of each image's halves on its pixels, with dropout; `factor` multiplies the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.line = nn.Dropout(0.1), nn.Linear(16, 2)
        self.net = nn.Sequential(nn.Flatten(), self.drop, self.line)

    def forward(self, x: Tensor, target: Tensor, factor: Tensor, spread: Tensor) -> Out:
        return Out((self.net(x) - target).square().mean() * factor, spread)


class Regression:
    """What the loop asks of a task, with hooks: the loss's factor and the spread by step."""

    def __init__(self, data: ImageSet, factor: Any = lambda step: 1.0, spread: Any = lambda step: 1.0) -> None:
        self.data, self.factor, self.spread = data, factor, spread
        self.module = Line()
        self.places: list[Place] = []
        self.seen: list[Tensor] = []
        self.chance: list[tuple[float, float]] = []
        self.updates: list[tuple[int, int, Tensor]] = []

    def trainable(self) -> nn.Module:
        return self.module.net

    def inputs(self, batch: Batch, generator: Generator, place: Place) -> tuple[Tensor, ...]:
        self.places.append(place)
        self.seen.append(batch.indices)
        self.chance.append((float(torch.rand((), generator=generator)), float(torch.rand(()))))
        x = batch.images.float() / 255
        target = torch.stack([x[..., :2].mean((1, 2, 3)), x[..., 2:].mean((1, 2, 3))], 1)
        return x, target, torch.tensor(self.factor(place.step)), torch.tensor(self.spread(place.step))

    def after(self, step: int, total: int) -> None:
        self.updates.append((step, total, self.module.line.weight.detach().clone()))


def images(n: int = 35, seed: int = 0) -> ImageSet:
    generator = Generator().manual_seed(seed)
    return ImageSet("noise", torch.randint(0, 256, (n, 1, 4, 4), dtype=torch.uint8, generator=generator))


def make(run: Path, config: TrainConfig = CONFIG, data: ImageSet | None = None, **hooks: Any) -> Loop:
    torch.manual_seed(0)
    task = Regression(data or images(), **hooks)
    return Loop(make_fabric(config), task, config, run, {"config": {}, "data": {"digest": task.data.digest}})
