"""ImageNet-C's fifteen corruptions at five severities, batched, on any device (Hendrycks & Dietterich, 2019).

Images whose shorter side is at most 64 pixels get CIFAR-10-C's parameters, larger ones ImageNet-C's, unless `table`
says otherwise.
"""

import torch
from torch import Tensor

from byov.data.corruptions.blur import defocus_blur, glass_blur, motion_blur, zoom_blur
from byov.data.corruptions.digital import contrast, elastic_transform, jpeg_compression, pixelate
from byov.data.corruptions.noise import gaussian_noise, impulse_noise, shot_noise
from byov.data.corruptions.weather import brightness, fog, frost, snow
from byov.data.shift import Shift, find

CORRUPTIONS: dict[str, Shift] = {
    corruption.name: corruption
    for corruption in (
        *(gaussian_noise, shot_noise, impulse_noise),
        *(defocus_blur, glass_blur, motion_blur, zoom_blur),
        *(snow, frost, fog, brightness),
        *(contrast, elastic_transform, pixelate, jpeg_compression),
    )
}
"""The corruptions by name, in ImageNet-C's order."""


def corrupt(
    images: Tensor,
    name: str,
    severity: int = 1,
    generator: torch.Generator | None = None,
    *,
    table: str | None = None,
) -> Tensor:
    """Apply the corruption `name` at a severity from 1 to 5.

    Images are floating point (N, 1 or 3, H, W) in [0, 1]; so is the result, with the same dtype and device. All
    randomness comes from `generator` (torch's default one if None). `table`, "imagenet" or "cifar", overrides the
    choice by size.
    """
    return find(CORRUPTIONS, name, "corruption")(images, severity, generator, table=table)


__all__ = ["CORRUPTIONS", "corrupt", *CORRUPTIONS]
