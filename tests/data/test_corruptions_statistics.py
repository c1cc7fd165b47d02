"""Random corruptions against their originals: the change they make has the same mean and the same spread.

References: `imagecorruptions` at 224 px. At 32 px, and for frost and the elastic transform, which that package changes
(six photographs for five, another elastic transform), the algorithm of Hendrycks & Dietterich is written out with
numpy, scipy and OpenCV and with the original parameters.
"""

# ruff: noqa: NPY002 (the package draws from numpy's global state, so the references beside it do too)

import importlib.resources
from collections.abc import Callable
from functools import lru_cache

import cv2
import numpy as np
import pytest
import torch
from imagecorruptions import corrupt as reference_corrupt
from imagecorruptions import corruptions as reference
from scipy.ndimage import map_coordinates
from skimage.filters import gaussian
from skimage.util import random_noise
from sklearn.datasets import load_sample_image

from byov.data.corruptions import corrupt


@lru_cache
def photographs(size: int) -> np.ndarray:
    """Two square crops (2, size, size, 3), 8 bits."""
    crops = [load_sample_image(name)[100:324, 160:384] for name in ("china.jpg", "flower.jpg")]
    return np.stack([cv2.resize(crop, (size, size), interpolation=cv2.INTER_AREA) for crop in crops])


def gaussian_noise(image: np.ndarray, c: float) -> np.ndarray:
    return image + 255 * np.random.normal(size=image.shape, scale=c)


def shot_noise(image: np.ndarray, c: float) -> np.ndarray:
    return 255 * np.random.poisson(image / 255 * c) / c


def impulse_noise(image: np.ndarray, c: float) -> np.ndarray:
    return 255 * random_noise(image / 255, mode="s&p", amount=c)


def glass_blur(image: np.ndarray, sigma: float, reach: int, iterations: int) -> np.ndarray:
    blurred = np.uint8(gaussian(image / 255, sigma=sigma, channel_axis=-1) * 255)
    seed = int(np.random.randint(2**31))
    blurred = reference._shuffle_pixels_njit_glass_blur(32, 32, blurred, (sigma, reach, iterations), seed)
    return 255 * gaussian(blurred / 255, sigma=sigma, channel_axis=-1)


def motion_blur(image: np.ndarray, radius: int, sigma: float) -> np.ndarray:
    return reference._motion_blur(image, radius, sigma, np.random.uniform(-45, 45))


def snow(image: np.ndarray, *c: float) -> np.ndarray:
    layer = reference.clipped_zoom(np.random.normal(size=(32, 32), loc=c[0], scale=c[1])[..., None], c[2])[..., 0]
    trim = (layer.shape[0] - 32) // 2
    layer = layer[trim : trim + 32, trim : trim + 32]
    layer[layer < c[3]] = 0
    layer = reference._motion_blur(np.clip(layer, 0, 1), c[4], c[5], np.random.uniform(-135, -45))[..., None]
    x = image.astype(np.float32) / 255
    x = c[6] * x + (1 - c[6]) * np.maximum(x, cv2.cvtColor(x, cv2.COLOR_RGB2GRAY)[..., None] * 1.5 + 0.5)
    return 255 * (x + layer + np.rot90(layer, k=2))


@lru_cache
def frost_photograph(name: str) -> np.ndarray:
    return cv2.imread(str(importlib.resources.files("imagecorruptions") / "frost" / name))


def frost(image: np.ndarray, keep: float, weight: float) -> np.ndarray:
    name = ["frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg"][np.random.randint(5)]
    photograph = frost_photograph(name)
    size = image.shape[0]
    if size == 32:
        photograph = cv2.resize(photograph, (0, 0), fx=0.2, fy=0.2)
    top, left = (np.random.randint(0, side - size) for side in photograph.shape[:2])
    return keep * image + weight * photograph[top : top + size, left : left + size, ::-1]


def fog(image: np.ndarray, density: float, decay: float) -> np.ndarray:
    x = image / 255
    highest = x.max()
    return 255 * (x + density * reference.plasma_fractal(32, decay)[..., None]) * highest / (highest + density)


def elastic_transform(image: np.ndarray, alpha: float, sigma: float, jitter: float) -> np.ndarray:
    image = image.astype(np.float32) / 255
    side = image.shape[0]
    centre, reach = side // 2, side // 3
    corners = np.float32([[reach, reach], [reach, -reach], [-reach, -reach]]) + centre
    moved = corners + np.random.uniform(-jitter, jitter, size=(3, 2)).astype(np.float32)
    matrix = cv2.getAffineTransform(corners, moved)
    image = cv2.warpAffine(image, matrix, (side, side), borderMode=cv2.BORDER_REFLECT_101)
    noise = np.random.uniform(-1, 1, size=(2, side, side))
    down, right = (alpha * (gaussian(part, sigma, mode="reflect", truncate=3) if sigma else part) for part in noise)
    rows, columns = np.meshgrid(np.arange(side), np.arange(side), indexing="ij")
    places = rows + down, columns + right
    return 255 * np.stack([map_coordinates(image[..., k], places, order=1, mode="reflect") for k in range(3)], axis=-1)


CIFAR: dict[str, tuple[Callable[..., np.ndarray], list[tuple[float, ...]]]] = {
    "gaussian_noise": (gaussian_noise, [(0.04,), (0.06,), (0.08,), (0.09,), (0.10,)]),
    "shot_noise": (shot_noise, [(500,), (250,), (100,), (75,), (50,)]),
    "impulse_noise": (impulse_noise, [(0.01,), (0.02,), (0.03,), (0.05,), (0.07,)]),
    "glass_blur": (glass_blur, [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)]),
    "motion_blur": (motion_blur, [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)]),
    "snow": (
        snow,
        [
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ],
    ),
    "frost": (frost, [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)]),
    "fog": (fog, [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)]),
    "elastic_transform": (
        elastic_transform,
        [(0, 0, 32 * 0.08)]
        + [(32 * a, 32 * s, 32 * j) for a, s, j in ((0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05))]
        + [(32 * 0.1, 32 * 0.03, 32 * 0.03)],
    ),
}
IMAGENET = {
    "frost": (frost, [(1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)]),
    "elastic_transform": (
        elastic_transform,
        [(244 * 2, 244 * 0.7, 244 * 0.1), (244 * 2, 244 * 0.08, 244 * 0.2)]
        + [(244 * alpha, 244 * 0.01, 244 * 0.02) for alpha in (0.05, 0.07, 0.12)],
    ),
}
# Noise over a whole image needs few draws; what varies between draws as a whole needs more.
REPEATS_224 = {"motion_blur": 6, "snow": 4, "frost": 12, "fog": 10, "elastic_transform": 4}


def changes_of_the_original(name: str, severity: int, size: int, repeats: int) -> torch.Tensor:
    """Eight-bit results less the image, (repeats, 2, H, W, 3), in [−1, 1]."""
    images = photographs(size)
    table = CIFAR if size == 32 else IMAGENET
    np.random.seed(severity)
    changes = []
    for _ in range(repeats):
        for image in images:
            if name in table:
                apply, strengths = table[name]
                shifted = np.uint8(np.clip(apply(image, *strengths[severity - 1]), 0, 255))
            else:
                shifted = reference_corrupt(image, severity=severity, corruption_name=name)
            changes.append((shifted.astype(np.float32) - image) / 255)
    return torch.from_numpy(np.stack(changes)).view(repeats, *images.shape)


def our_changes(name: str, severity: int, size: int, repeats: int) -> torch.Tensor:
    images = torch.from_numpy(photographs(size)).permute(0, 3, 1, 2).float() / 255
    batch = images.repeat(repeats, 1, 1, 1)
    shifted = corrupt(batch, name, severity, torch.Generator().manual_seed(severity))
    shifted = (shifted * 255).floor() / 255  # the originals cut off to eight bits
    return (shifted - batch).view(repeats, *images.shape).permute(0, 1, 3, 4, 2)


def assert_same_statistics(name: str, severity: int, size: int, repeats: int) -> None:
    """Mean and standard deviation of the change of each image, compared with their standard error over the draws."""
    originals = changes_of_the_original(name, severity, size, repeats)
    ours = our_changes(name, severity, size, max(repeats, 160 * 32 // size))
    for statistic, margin in (
        (lambda change: change.mean(dim=(2, 3, 4)), 0.003),  # one level is 0.0039
        (lambda change: change.std(dim=(2, 3, 4)), 0.003),
    ):
        expected, found = statistic(originals), statistic(ours)
        spread = expected.var(dim=0) / len(expected) + found.var(dim=0) / len(found)
        if name == "frost":  # the textures are not the same; the brightness that they add is
            margin = 0.03
        assert ((found.mean(dim=0) - expected.mean(dim=0)).abs() < margin + 4 * spread.sqrt()).all()
        assert (spread.sqrt() < 0.04).all()  # otherwise the test could not fail


@pytest.mark.parametrize("name", CIFAR)
@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_the_change_has_the_originals_statistics_at_32_px(name: str, severity: int) -> None:
    assert_same_statistics(name, severity, 32, repeats=24)


@pytest.mark.parametrize("name", CIFAR)
@pytest.mark.parametrize("severity", [1, 3, 5])
def test_the_change_has_the_originals_statistics_at_224_px(name: str, severity: int) -> None:
    assert_same_statistics(name, severity, 224, repeats=REPEATS_224.get(name, 2))


@pytest.mark.parametrize("severity", [1, 5])
def test_noises_have_their_closed_form_moments_on_grey(severity: int) -> None:
    grey = torch.full((16, 3, 96, 96), 0.5)  # far from 0 and 1, where clipping would change the moments
    sigma, table = (0.08, "imagenet") if severity == 1 else (0.10, "cifar")
    change = corrupt(grey, "gaussian_noise", severity, torch.Generator().manual_seed(0), table=table) - grey
    assert abs(float(change.mean())) < 5 * sigma / change.numel() ** 0.5
    assert abs(float(change.std()) / sigma - 1) < 5 / (2 * change.numel()) ** 0.5

    photons, amount = (60, 0.03) if severity == 1 else (50, 0.07)
    counts = corrupt(grey, "shot_noise", severity, torch.Generator().manual_seed(0), table=table) * photons
    assert abs(float(counts.mean()) - photons / 2) < 5 * (photons / 2 / counts.numel()) ** 0.5
    assert abs(float(counts.var()) / (photons / 2) - 1) < 0.02
    assert torch.equal(counts.round().mul(1e3).round(), counts.mul(1e3).round())

    shifted = corrupt(grey, "impulse_noise", severity, torch.Generator().manual_seed(0), table=table)
    error = 5 * (amount / 2 / shifted.numel()) ** 0.5
    assert abs(float((shifted == 0).float().mean()) - amount / 2) < error
    assert abs(float((shifted == 1).float().mean()) - amount / 2) < error
