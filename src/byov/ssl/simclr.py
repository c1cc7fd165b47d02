"""SimCLR (Chen et al. 2020): among all views of the batch, find the one of the same image."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byov.ssl.gather import gather, rank
from byov.ssl.heads import mlp
from byov.ssl.objective import Heads, Objective, Student, Teacher, in_float32


@in_float32
def nt_xent(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """Compute NT-Xent: the cross-entropy of each view's partner among all other views of all processes.

    It is averaged over the views of this process (equation 1).
    """
    z1, z2 = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
    everyone = torch.cat([gather(z1), gather(z2)])
    logits = torch.cat([z1, z2]) @ everyone.T / temperature
    half = len(everyone) // 2
    own = torch.arange(len(z1), device=z1.device) + rank() * len(z1)
    itself, partner = torch.cat([own, own + half]), torch.cat([own + half, own])
    return F.cross_entropy(logits.scatter(1, itself[:, None], float("-inf")), partner)


class SimCLR(Objective):
    """NT-Xent at a temperature of 0.1 (section 5.1), for ImageNet; the paper uses 0.5 for CIFAR-10 (B.9).

    The projector has two layers, 2,048 and 128 wide, both with BatchNorm as in the authors' code. The paper trains with
    LARS and batches of 4,096; the other views of the batch are the negatives, so a small batch is a different task.
    """

    title, extent = "SimCLR", "begins near log(2·batch − 1)"
    hidden, outputs = 2048, 128
    temperature = 0.1

    @classmethod
    def heads(cls, features: int, hidden: int, outputs: int, norms: bool) -> Heads:
        return mlp((features, hidden, outputs), nn.BatchNorm1d(outputs)), None

    def forward(self, student: Student, teacher: Teacher, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        z1, z2 = student(first, second)
        return nt_xent(z1, z2, self.temperature), z1
