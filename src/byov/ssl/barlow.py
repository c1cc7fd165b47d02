"""Barlow Twins (Zbontar et al. 2021): the views' outputs agree, and different outputs are decorrelated."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from byov.ssl.gather import gather
from byov.ssl.heads import mlp
from byov.ssl.objective import Heads, Objective, Student, Teacher, in_float32


@in_float32
def cross_correlation_loss(z1: Tensor, z2: Tensor, redundancy: float) -> Tensor:
    """Compute Σᵢ (1 − Cᵢᵢ)² + λ Σᵢ Σⱼ≠ᵢ Cᵢⱼ² (equation 1).

    C is the cross-correlation of the outputs over the global batch.
    """
    z1, z2 = (F.batch_norm(gather(z), None, None, training=True) for z in (z1, z2))
    correlation = z1.T @ z2 / len(z1)
    itself = torch.eye(len(correlation), dtype=torch.bool, device=z1.device)
    off_diagonal = correlation.masked_fill(itself, 0.0)
    return (1.0 - correlation.diagonal()).square().sum() + redundancy * off_diagonal.square().sum()


class BarlowTwins(Objective):
    """Make the cross-correlation of two views the identity, with λ = 0.005 (section 2.2; 0.0051 in the code).

    The projector has three layers of width 8,192, with BatchNorm after the first two. The loss is a sum over outputs.
    Some versions of the authors' code scale it, which has no effect under LARS; here it is the paper's.
    """

    title, extent = "Barlow Twins", "begins near the number of outputs"
    hidden, outputs = 8192, 8192
    weights = (0.0051,)

    @classmethod
    def heads(cls, features: int, hidden: int, outputs: int, norms: bool) -> Heads:
        return mlp((features, hidden, hidden, outputs)), None

    def forward(self, student: Student, teacher: Teacher, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        z1, z2 = student(first, second)
        return cross_correlation_loss(z1, z2, *self.weights), z1
