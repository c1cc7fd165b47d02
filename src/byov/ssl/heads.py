"""BYOL's projector and predictor, and the student that puts them behind an encoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.init import trunc_normal_


def head(inputs: int, hidden: int = 4096, outputs: int = 256) -> nn.Sequential:
    """Build Linear → BatchNorm → ReLU → Linear, the last without a bias (Grill et al.'s code), by trunc_normal(0.02).

    The code's BatchNorm momentum 0.9 keeps 0.9 of the old statistics, which torch calls 0.1.
    """
    layers = nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.BatchNorm1d(hidden, eps=1e-5, momentum=0.1),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, outputs, bias=False),
    )
    for layer in layers:
        if isinstance(layer, nn.Linear):
            trunc_normal_(layer.weight, std=0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return layers


class Student(nn.Module):
    """Encoder, projector and predictor. Both views go through in one call, so that one draw serves both."""

    def __init__(self, encoder: nn.Module, features: int, hidden: int = 4096, outputs: int = 256) -> None:
        super().__init__()
        self.encoder = encoder
        self.encoder_sees_batch = any(isinstance(m, nn.modules.batchnorm._NormBase) for m in encoder.modules())
        self.projector = head(features, hidden, outputs)
        self.predictor = head(outputs, hidden, outputs)

    def forward(self, first: Tensor, second: Tensor, predict: bool = True) -> tuple[Tensor, Tensor]:
        """Return the predictions of the two views, or with `predict=False` (the teacher) their projections.

        BatchNorm's statistics are each view's own, as in BYOL: one pass per view. An encoder without any, say a ViT,
        takes both at once.
        """
        if self.encoder_sees_batch or first.shape != second.shape:
            features = self.encoder(first), self.encoder(second)
        else:
            features = self.encoder(torch.cat([first, second])).split(len(first))
        return self._heads(features[0], predict), self._heads(features[1], predict)

    def _heads(self, features: Tensor, predict: bool) -> Tensor:
        projection = self.projector(features)
        return self.predictor(projection) if predict else projection
