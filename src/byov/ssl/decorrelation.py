"""Barlow Twins and VICReg: the views agree, and each output says something of its own.

Zbontar et al. 2021; Bardes, Ponce and LeCun 2022, where every output also has to vary over the batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from byov.ssl.gather import gather
from byov.ssl.heads import mlp
from byov.ssl.objective import Heads, Objective, Student, Teacher, in_float32

EPS = 1e-4
"""Of VICReg's standard deviations."""


@in_float32
def cross_correlation_loss(z1: Tensor, z2: Tensor, redundancy: float) -> Tensor:
    """Compute Σᵢ (1 − Cᵢᵢ)² + λ Σᵢ Σⱼ≠ᵢ Cᵢⱼ² (equation 1).

    C is the cross-correlation of the outputs over the batch of all processes.
    """
    z1, z2 = (F.batch_norm(gather(z), None, None, training=True) for z in (z1, z2))
    correlation = z1.T @ z2 / len(z1)
    itself = torch.eye(len(correlation), dtype=torch.bool, device=z1.device)
    off_diagonal = correlation.masked_fill(itself, 0.0)
    return (1.0 - correlation.diagonal()).square().sum() + redundancy * off_diagonal.square().sum()


class Expanded(Objective):
    """An objective behind a projector of three layers, 8,192 wide each, BatchNorm behind the first two."""

    hidden, outputs = 8192, 8192

    @classmethod
    def heads(cls, features: int, hidden: int, outputs: int, norms: bool) -> Heads:
        return mlp((features, hidden, hidden, outputs)), None


class BarlowTwins(Expanded):
    """The cross-correlation of two views is drawn to the identity, with λ = 0.005 (section 2.2, the code's 0.0051).

    The loss is a sum over outputs. The authors scale it in some versions of their code, which LARS does not notice;
    here it is the paper's.
    """

    title, extent = "Barlow Twins", "begins near the number of outputs"
    weights = (0.0051,)

    def forward(self, student: Student, teacher: Teacher, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        z1, z2 = student(first, second)
        return cross_correlation_loss(z1, z2, *self.weights), z1


@in_float32
def vicreg_loss(z1: Tensor, z2: Tensor, invariance: float, variance: float, covariance: float) -> Tensor:
    """Compute λ s(z₁, z₂) + μ [v(z₁) + v(z₂)]/2 + ν [c(z₁) + c(z₂)], as in the authors' code.

    s is the mean square between this process's views; v, a hinge at a standard deviation of 1, and c, the squared
    covariances off the diagonal over the number of outputs, are of the batch of all processes.
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


class VICReg(Expanded):
    """Weights 25 (invariance), 25 (variance) and 1 (covariance); a projector like Barlow Twins' (section 4.2)."""

    title, extent = "VICReg", "begins near 25"
    weights = (25.0, 25.0, 1.0)

    def forward(self, student: Student, teacher: Teacher, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        z1, z2 = student(first, second)
        return vicreg_loss(z1, z2, *self.weights), z1
