"""Fine-tune a supervised network between two rounds of pruning, as its recipe trained it."""

from __future__ import annotations

from typing import get_args

import torch
import torch.nn.functional as F
from torch import Generator, nn

from byov.data import Batches, ImageSet
from byov.train.config import Rate
from byov.train.supervised import Supervised

RATES = get_args(Rate)[1]


class FineTune:
    """`fine_tune(net)` for `prune_gradually`: cross-entropy with the recipe's batches and augmentation, by Adam.

    One optimizer and one order of batches serve all rounds. There is no KL: what is fine-tuned is the plain network.

    Args:
        recipe: the one that trained it.
        train: its training images.
        mean: per channel, subtracted from the images.
        std: per channel, what they are then divided by.
        epochs: per round.
        lr: the learning rate, held.
        seed: of batches and augmentation.
        device: where.
    """

    def __init__(
        self,
        recipe: Supervised,
        train: ImageSet,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
        epochs: int = 1,
        lr: float = 1e-3,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if epochs < 1 or lr not in RATES:
            raise ValueError(
                f"Fine-tuning takes at least one epoch and a learning rate {RATES}, not {epochs} and {lr}."
            )
        self.augment = recipe.augmentation(mean, std)
        self.batches = Batches(train, min(recipe.train.batch_size, len(train)), seed=seed)
        self.generator = Generator(device).manual_seed(seed)
        self.epochs, self.lr = epochs, lr
        self.optimizer: torch.optim.Optimizer | None = None

    def __call__(self, net: nn.Module) -> None:
        self.optimizer = self.optimizer or torch.optim.Adam(net.parameters(), lr=self.lr)
        for _ in range(self.epochs):
            for batch in self.batches:
                assert batch.labels is not None
                self.optimizer.zero_grad()
                logits = net(self.augment(batch.images, self.generator))
                F.cross_entropy(logits, batch.labels).backward()
                self.optimizer.step()
        if not all(bool(p.isfinite().all()) for p in net.parameters()):
            raise ValueError(f"Fine-tuning diverged with a learning rate of {self.lr}: choose a lower one.")
