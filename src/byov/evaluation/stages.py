"""What each part of a student makes of images: the encoder's features, then the projector's, then the predictor's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from byov.ssl.features import ImageOptions, extract

STAGES = ("encoder", "projector", "predictor")


def chain(parts: Sequence[nn.Module], widths: list[int]) -> Callable[[Tensor], Tensor]:
    """Return a function to the outputs of parts that feed each other, side by side (N, ΣD); it fills in `widths`."""

    def forward(batch: Tensor) -> Tensor:
        outputs = []
        for part in parts:
            batch = part(batch)
            outputs.append(batch.float().flatten(1))
        widths[:] = [output.shape[1] for output in outputs]
        return torch.cat(outputs, dim=1)

    return forward


def stage_outputs(parts: Sequence[nn.Module], images: Tensor, **options: Unpack[ImageOptions]) -> tuple[Tensor, ...]:
    """Compute the outputs (N, D) of parts that feed each other, in float32, with the weights they have now."""
    widths: list[int] = []
    return extract(chain(parts, widths), images, **options).split(widths, dim=1)
