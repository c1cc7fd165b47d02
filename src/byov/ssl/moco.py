"""MoCo v3 (Chen, Xie and He 2021): find the same image among the teacher's projections of the batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byov.ssl.gather import gather, rank
from byov.ssl.heads import mlp
from byov.ssl.objective import Heads, Objective, Student, Teacher, in_float32


@in_float32
def info_nce(queries: Tensor, keys: Tensor, temperature: float) -> Tensor:
    """Compute 2τ times the cross-entropy of each query's own key among the keys of all processes."""
    logits = F.normalize(queries, dim=1) @ F.normalize(gather(keys), dim=1).T / temperature
    own = torch.arange(len(queries), device=queries.device) + rank() * len(queries)
    return 2 * temperature * F.cross_entropy(logits, own)


class MoCoV3(Objective):
    """InfoNCE of q₁ in k₂ and of q₂ in k₁, at a temperature of 0.2, times 2τ (algorithm 1).

    Version 3 has no queue: the negatives are the other images of the batch, which is 4,096 in the paper. The heads
    (section 4.2) are a projector with three layers and a predictor with two, 4,096 hidden and 256 out, all with
    BatchNorm, which has no affine part at the outputs. The teacher's τ runs from 0.99 to 1, as in the code for 300
    epochs.
    """

    title, extent = "MoCo v3", "begins near 4τ·log(batch)"
    teacher = True
    hidden, outputs = 4096, 256
    temperature = 0.2

    @classmethod
    def heads(cls, features: int, hidden: int, outputs: int, norms: bool) -> Heads:
        projector = mlp((features, hidden, hidden, outputs), nn.BatchNorm1d(outputs, affine=False))
        return projector, mlp((outputs, hidden, outputs), nn.BatchNorm1d(outputs, affine=False))

    def forward(self, student: Student, teacher: Teacher, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        q1, q2 = student(first, second)
        k1, k2 = teacher(first, second)
        return info_nce(q1, k2, self.temperature) + info_nce(q2, k1, self.temperature), k1
