"""BYOL (Grill et al. 2020): a student predicts what its moving average, the teacher, says of another view.

SimSiam (Chen and He 2021) does without the teacher: each view predicts the other, whose gradient is stopped.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from byov.ssl.heads import head, mlp
from byov.ssl.learner import Learner
from byov.ssl.objective import Heads, Objective, Student, Teacher, in_float32
from byov.ssl.views import Views


def regression_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """Compute ‖p̂ − ẑ‖² = 2 − 2 cos, averaged over the batch."""
    cosine = F.cosine_similarity(prediction.float(), target.float(), dim=-1)
    return (2.0 - 2.0 * cosine).mean()


class Bootstrap(Objective):
    """BYOL's loss: the sum over both directions, from 0 to 8.

    Heads are Linear → BatchNorm → ReLU → Linear, 4096 hidden and 256 out (section 3.3). τ starts at 0.99, the paper's
    for 300 epochs (0.996 for 1,000), and rises to 1 along a cosine.
    """

    title, extent = "BYOL", "lies between 0 and 8"
    teacher = additive = True
    hidden, outputs = 4096, 256

    @classmethod
    def heads(cls, features: int, hidden: int, outputs: int, norms: bool) -> Heads:
        return head(features, hidden, outputs), head(outputs, hidden, outputs)

    def forward(self, student: Student, teacher: Teacher, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        p1, p2 = student(first, second)
        z1, z2 = teacher(first, second)
        return regression_loss(p1, z2) + regression_loss(p2, z1), z1


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


class BYOL(Learner):
    """A student, its teacher and BYOL's loss; the student may be a plain network, or a posterior's (`BYOV`)."""

    def __init__(
        self,
        student: nn.Module,
        views: Views,
        tau_base: float = 0.99,
        tau_end: float = 1.0,
        kl_scale: float | None = None,
    ) -> None:
        super().__init__(student, views, Bootstrap(), tau_base, tau_end, kl_scale)
