"""SimSiam (Chen and He 2021): BYOL without a teacher; each view predicts the other, whose gradient is stopped."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from byov.ssl.heads import mlp
from byov.ssl.objective import Heads, Objective, Student, Teacher, in_float32


@in_float32
def negative_cosine(prediction: Tensor, target: Tensor) -> Tensor:
    """Compute −cos(p, z), averaged over the batch; nothing flows into z."""
    return -F.cosine_similarity(prediction, target.detach(), dim=-1).mean()


class SimSiam(Objective):
    """½ D(p₁, z₂) + ½ D(p₂, z₁) with D = −cos (equation 2), from −1 to 1.

    Heads (section 3): a projector of three layers, all 2,048 wide, each with BatchNorm, the last without an affine
    part, as in the authors' code; a predictor of two, with a bottleneck of a quarter of the width (512), whose output
    has none. The paper keeps the predictor's learning rate constant; here it falls with the rest.
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
