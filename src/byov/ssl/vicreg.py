"""VICReg (Bardes, Ponce and LeCun 2022): the views agree, and outputs vary over the batch without covarying."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from byov.ssl.gather import gather
from byov.ssl.heads import mlp
from byov.ssl.objective import Heads, Objective, Student, Teacher, in_float32

EPS = 1e-4


@in_float32
def vicreg_loss(z1: Tensor, z2: Tensor, invariance: float, variance: float, covariance: float) -> Tensor:
    """Compute λ s(z₁, z₂) + μ [v(z₁) + v(z₂)]/2 + ν [c(z₁) + c(z₂)], as in the authors' code.

    s is the mean squared error between the views of this process. v, a hinge at a standard deviation of 1, and c, the
    sum of squared off-diagonal covariances divided by the number of outputs, are computed on the global batch.
    """
    total = invariance * F.mse_loss(z1, z2)
    for z in (gather(z1), gather(z2)):
        z = z - z.mean(0)
        covariances = z.T @ z / (len(z) - 1)
        itself = torch.eye(len(covariances), dtype=torch.bool, device=z.device)
        hinge = F.relu(1.0 - (z.var(0) + EPS).sqrt()).mean()
        together = covariances.masked_fill(itself, 0.0).square().sum() / z.shape[1]
        total = total + variance * hinge / 2 + covariance * together
    return total


class VICReg(Objective):
    """Weights 25 (invariance), 25 (variance) and 1 (covariance); a projector like Barlow Twins' (section 4.2).

    It has three layers of width 8,192, with BatchNorm after the first two.
    """

    title, extent = "VICReg", "begins near 25"
    hidden, outputs = 8192, 8192
    weights = (25.0, 25.0, 1.0)

    @classmethod
    def heads(cls, features: int, hidden: int, outputs: int, norms: bool) -> Heads:
        return mlp((features, hidden, hidden, outputs)), None

    def forward(self, student: Student, teacher: Teacher, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        z1, z2 = student(first, second)
        return vicreg_loss(z1, z2, *self.weights), z1
