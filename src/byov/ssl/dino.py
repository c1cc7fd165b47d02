"""DINO (Caron et al. 2021): the student predicts the teacher's soft assignment of the other view to prototypes."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.init import trunc_normal_

from byov.posterior.module import several_processes
from byov.ssl.objective import Heads, Objective, Student, Teacher, in_float32

BOTTLENECK = 256
START, END, WARMUP = 0.04, 0.07, 0.1
"""The teacher's temperature: linear from 0.04 to 0.07 over 30 of 300 epochs (appendix C), here over a tenth of all."""
CENTRE_DECAY = 0.9
"""The decay of the centre's moving average."""


@in_float32
def cross_view_entropy(
    s1: Tensor, s2: Tensor, t1: Tensor, t2: Tensor, centre: Tensor, sharp: Tensor, temperature: float
) -> Tensor:
    """Compute the mean of H(t₁, s₂) and H(t₂, s₁), where the teacher is centred and has the temperature `sharp`."""
    t1, t2 = (((t - centre) / sharp).softmax(1) for t in (t1, t2))
    s1, s2 = ((s / temperature).log_softmax(1) for s in (s1, s2))
    return -((t1 * s2).sum(1) + (t2 * s1).sum(1)).mean() / 2


class Prototypes(nn.Linear):
    """Cosines to learned directions: the authors' weight-normalised layer, with norms fixed at 1."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=-1))


class DINO(Objective):
    """The cross-entropy of two views in both directions; centring and a low teacher temperature prevent collapse.

    The student's temperature is 0.1, τ runs from 0.996 to 1, and there are 65,536 prototypes (section 3, appendix C).
    The projector has three layers, 2,048 hidden units, GELU, a bottleneck of 256 and then the prototypes; it has
    BatchNorm only if the encoder does. There are two crops and no small ones. Two parts of the paper's training are
    left out: the weight decay that rises along a cosine, and freezing the prototypes in the first epoch.
    """

    centre: Tensor
    sharp: Tensor
    said: Tensor
    parts: Tensor

    title, extent = "DINO", "begins near log(outputs)"
    teacher = additive = True
    hidden, outputs = 2048, 65_536
    tau_base, temperature = 0.996, 0.1

    def __init__(
        self, outputs: int = 0, temperature: float | None = None, weights: tuple[float, ...] | None = None
    ) -> None:
        super().__init__(outputs, temperature, weights)
        self.register_buffer("centre", torch.zeros(outputs or self.outputs))
        self.register_buffer("sharp", torch.tensor(START))
        # Sum of the teacher's mean outputs over the parts of this step's batch; 0 whenever a checkpoint is written.
        self.register_buffer("said", torch.zeros(outputs or self.outputs), persistent=False)
        self.register_buffer("parts", torch.zeros(()), persistent=False)

    @classmethod
    def heads(cls, features: int, hidden: int, outputs: int, norms: bool) -> Heads:
        layers: list[nn.Module] = []
        for inputs in (features, hidden):
            layers += [nn.Linear(inputs, hidden), *([nn.BatchNorm1d(hidden)] if norms else []), nn.GELU()]
        layers.append(nn.Linear(hidden, BOTTLENECK))
        for layer in layers:
            if isinstance(layer, nn.Linear):
                trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        return nn.Sequential(*layers, Prototypes(BOTTLENECK, outputs, bias=False)), None

    def forward(self, student: Student, teacher: Teacher, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        s1, s2 = student(first, second)
        t1, t2 = teacher(first, second)
        loss = cross_view_entropy(s1, s2, t1, t2, self.centre, self.sharp, self.temperature)
        if self.training:
            self.said.add_((t1 + t2).float().mean(0) / 2)
            self.parts.add_(1)
        return loss, t1 - self.centre

    @torch.no_grad()
    def after(self, step: int, total: int) -> None:
        """Update the centre with the teacher's mean output for this global batch, and set the teacher's temperature."""
        if several_processes():
            dist.all_reduce(self.said)
            self.said /= dist.get_world_size()
        batch = torch.where(self.parts > 0, self.said / self.parts, self.centre)
        self.centre.lerp_(batch, 1 - CENTRE_DECAY)
        self.said.zero_()
        self.parts.zero_()
        self.sharp.fill_(START + (END - START) * min(1.0, step / (WARMUP * total)))
