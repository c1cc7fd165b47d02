"""Projectors and predictors that follow an encoder during training, and the student that contains all of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.init import trunc_normal_


def head(inputs: int, hidden: int = 4096, outputs: int = 256) -> nn.Sequential:
    """Build BYOL's Linear → BatchNorm → ReLU → Linear, initialised by trunc_normal(0.02), the last without a bias.

    The missing bias is as in BYOL's code. Its BatchNorm momentum 0.9 keeps 0.9 of the old statistics: 0.1 in torch.
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


def mlp(widths: Sequence[int], end: nn.Module | None = None, bias: bool = False) -> nn.Sequential:
    """Build Linear → BatchNorm → ReLU for each hidden width, then a Linear and `end`, with torch's initialisation.

    A bias before BatchNorm would have no effect; `bias` is for the last layer.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths[:-1]):
        layers += [nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU(inplace=True)]
    layers.append(nn.Linear(widths[-2], widths[-1], bias=bias))
    return nn.Sequential(*layers, *([] if end is None else [end]))


def sees_batch(encoder: nn.Module) -> bool:
    """Check whether a module has batch statistics."""
    return any(isinstance(m, nn.modules.batchnorm._NormBase) for m in encoder.modules())


class Student(nn.Module):
    """Encoder, projector and predictor. One call processes both views, so that both use the same draw."""

    def __init__(
        self,
        encoder: nn.Module,
        features: int,
        hidden: int = 4096,
        outputs: int = 256,
        heads: tuple[nn.Module, nn.Module | None] | None = None,
    ) -> None:
        """Add `heads` to an encoder: a projector, and a predictor or None; BYOL's by default."""
        super().__init__()
        self.encoder = encoder
        self.encoder_sees_batch = sees_batch(encoder)
        self.projector, self.predictor = heads or (head(features, hidden, outputs), head(outputs, hidden, outputs))

    def forward(self, first: Tensor, second: Tensor, predict: bool = True, both: bool = False) -> tuple[Tensor, ...]:
        """Return the predictions of the two views, or with `predict=False` (the teacher) their projections.

        Without a predictor they are the same. With `both`, the projections follow the predictions. BatchNorm statistics
        are separate for each view, as in BYOL: one pass per view. An encoder without BatchNorm, such as a ViT, takes
        both views in one pass.
        """
        if self.encoder_sees_batch or first.shape != second.shape:
            features = self.encoder(first), self.encoder(second)
        else:
            features = self.encoder(torch.cat([first, second])).split(len(first))
        (p1, z1), (p2, z2) = self._heads(features[0], predict), self._heads(features[1], predict)
        return (p1, p2, z1, z2) if both else (p1, p2)

    def _heads(self, features: Tensor, predict: bool) -> tuple[Tensor, Tensor]:
        projection = self.projector(features)
        prediction = self.predictor(projection) if predict and self.predictor is not None else projection
        return prediction, projection
