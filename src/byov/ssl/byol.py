"""BYOL (Grill et al. 2020): a student predicts the projection of another view by its moving average, the teacher."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from byov.ssl.heads import head
from byov.ssl.learner import Learner
from byov.ssl.objective import Heads, Objective, Student, Teacher
from byov.ssl.views import Views


def regression_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """Compute ‖p̂ − ẑ‖² = 2 − 2 cos, averaged over the batch."""
    cosine = F.cosine_similarity(prediction.float(), target.float(), dim=-1)
    return (2.0 - 2.0 * cosine).mean()


class Bootstrap(Objective):
    """BYOL's loss: the sum over both directions, from 0 to 8.

    Heads are Linear → BatchNorm → ReLU → Linear, 4096 hidden and 256 out (section 3.3). τ starts at 0.99, the paper's
    value for 300 epochs (0.996 for 1,000), and rises to 1 along a cosine.
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


class BYOL(Learner):
    """A student, its teacher and BYOL's loss; the student is a plain network or has a posterior (`BYOV`)."""

    def __init__(
        self,
        student: nn.Module,
        views: Views,
        tau_base: float = 0.99,
        tau_end: float = 1.0,
        kl_scale: float | None = None,
    ) -> None:
        super().__init__(student, views, Bootstrap(), tau_base, tau_end, kl_scale)
