"""Motion blur, snow, frost and fog with the same draws as the original's formula, at both published tables.

Their statistics vary so much between draws that a wrong parameter could hide there; with equal draws it cannot.
"""

import cv2
import numpy as np
import pytest
import torch
from imagecorruptions import corruptions as reference
from sklearn.datasets import load_sample_image
from torch import Tensor

from byov.data.corruptions import corrupt
from byov.data.corruptions.weather import frost_texture, plasma

MOTION_BLUR = {
    32: [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
    224: [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],
}
SNOW = {
    32: [
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ],
    224: [
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ],
}
FROST = {
    32: [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)],
    224: [(1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)],
}
FOG = {
    32: [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)],
    224: [(1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)],
}
EACH = pytest.mark.parametrize(("size", "severity"), [(size, k) for size in (32, 224) for k in (1, 2, 3, 4, 5)])


def photographs(size: int) -> Tensor:
    crops = [load_sample_image(name)[100:324, 160:384] for name in ("china.jpg", "flower.jpg")]
    crops = [cv2.resize(crop, (size, size), interpolation=cv2.INTER_AREA) for crop in crops]
    return torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).float() / 255


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(4)


@EACH
def test_motion_blur(size: int, severity: int) -> None:
    images, (radius, sigma) = photographs(size), MOTION_BLUR[size][severity - 1]
    angles = torch.rand(2, generator=seeded()) * 90 - 45
    found = corrupt(images, "motion_blur", severity, seeded())
    for image, angle, result in zip(images, angles.tolist(), found, strict=True):
        expected = reference._motion_blur(image.permute(1, 2, 0).numpy(), radius, sigma, angle)
        assert np.abs(result.permute(1, 2, 0).numpy() - expected).max() < 1e-4


@EACH
def test_snow(size: int, severity: int) -> None:
    images, c = photographs(size), SNOW[size][severity - 1]
    draws = seeded()
    kept = int(np.ceil(size / c[2]))
    noise = torch.randn(2, kept, kept, generator=draws) * c[1] + c[0]
    angles = torch.rand(2, generator=draws) * 90 - 135
    found = corrupt(images, "snow", severity, seeded())
    for image, flakes, angle, result in zip(images, noise.numpy(), angles.tolist(), found, strict=True):
        canvas = np.zeros((size, size, 1), dtype=np.float64)
        top = (size - kept) // 2
        canvas[top : top + kept, top : top + kept, 0] = flakes
        layer = reference.clipped_zoom(canvas, c[2])[..., 0]
        trim = (layer.shape[0] - size) // 2
        layer = layer[trim : trim + size, trim : trim + size]
        layer[layer < c[3]] = 0
        layer = reference._motion_blur(np.clip(layer, 0, 1), c[4], c[5], angle)[..., None]
        x = image.permute(1, 2, 0).numpy()
        x = c[6] * x + (1 - c[6]) * np.maximum(x, cv2.cvtColor(x, cv2.COLOR_RGB2GRAY)[..., None] * 1.5 + 0.5)
        expected = np.clip(x + layer + np.rot90(layer, k=2), 0, 1)
        difference = np.abs(result.permute(1, 2, 0).numpy() - expected)
        # Two layers in eight bits make up to one level; a flake at the threshold may fall on the other side.
        assert np.quantile(difference, 0.999) < 1 / 255 + 1e-4
        assert difference.mean() < 0.5 / 255


@EACH
def test_frost(size: int, severity: int) -> None:
    images, (keep, weight) = photographs(size), FROST[size][severity - 1]
    expected = keep * images + weight * frost_texture(2, size, size, images, seeded())
    torch.testing.assert_close(corrupt(images, "frost", severity, seeded()), expected.clamp(0, 1), atol=1e-5, rtol=0)


@EACH
def test_fog(size: int, severity: int) -> None:
    images, (density, decay) = photographs(size), FOG[size][severity - 1]
    cloud = plasma(2, size, decay, images, seeded())[:, None, :size, :size]
    highest = images.amax(dim=(1, 2, 3), keepdim=True)
    expected = (images + density * cloud) * highest / (highest + density)
    torch.testing.assert_close(corrupt(images, "fog", severity, seeded()), expected.clamp(0, 1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [32, 224])
def test_frost_textures_have_the_photographs_colour_and_spread(size: int) -> None:
    textures = frost_texture(400 if size == 32 else 40, size, size, torch.zeros(()), seeded())
    # Mean over the five photographs of their colour; spread within a crop and of a crop's grey between crops.
    torch.testing.assert_close(textures.mean(dim=(0, 2, 3)), torch.tensor([0.563, 0.646, 0.692]), atol=0.08, rtol=0)
    within = textures.std(dim=(2, 3)).mean(dim=0)
    torch.testing.assert_close(within, torch.tensor([0.098, 0.091, 0.092]), atol=0.012, rtol=0)
    neighbours = [
        torch.corrcoef(torch.stack((t[:, :-1].flatten(), t[:, 1:].flatten())))[0, 1] for t in textures.mean(dim=1)[:20]
    ]
    assert 0.3 < float(torch.stack(neighbours).mean()) < 0.85  # a texture, neither noise nor a plain
