"""A small student: an encoder with a norm, its heads, and images for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from byov.ssl.heads import Student


def encoder() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 12))


def student() -> Student:
    return Student(encoder(), 12, hidden=16, outputs=8)


def images(count: int = 10) -> Tensor:
    return torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8)
