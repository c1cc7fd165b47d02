"""SimSiam (Chen and He 2021): BYOL without a teacher; each view predicts the other, whose gradient is stopped."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from byov.ssl.heads import mlp
from byov.ssl.objective import Heads, Objective, Student, Teacher, in_float32


@in_float32
def negative_cosine(prediction: Tensor, target: Tensor) -> Tensor:
    """Compute −cos(p, z), averaged over the batch; no gradient flows into z."""
    return -F.cosine_similarity(prediction, target.detach(), dim=-1).mean()


class SimSiam(Objective):
    """½ D(p₁, z₂) + ½ D(p₂, z₁) with D = −cos (equation 2), from −1 to 1.

    The projector (section 3) has three layers of width 2,048, each with BatchNorm, which is not affine in the last, as
    in the authors' code. The predictor has two layers, with a bottleneck of a quarter of the width (512) and no
    BatchNorm at its output. The paper keeps the predictor's learning rate constant; here it decays with the rest.
    """

    title, extent = "SimSiam", "lies between −1 and 1"
    additive = True
    hidden, outputs = 2048, 2048

    @classmethod
    def heads(cls, features: int, hidden: int, outputs: int, norms: bool) -> Heads:
        projector = mlp((features, hidden, hidden, outputs), nn.BatchNorm1d(outputs, affine=False))
        return projector, mlp((outputs, max(1, hidden // 4), outputs), bias=True)

    def forward(self, student: Student, teacher: Teacher, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        p1, p2, z1, z2 = student(first, second, both=True)
        return (negative_cosine(p1, z2) + negative_cosine(p2, z1)) / 2, z1
