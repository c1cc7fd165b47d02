"""The original corruptions of Hendrycks & Dietterich with the published parameters, and photographs to apply them to.

At 224 px the package `imagecorruptions` is the original, but for frost and the elastic transform, which it changes (six
photographs for five, another elastic transform); these, and all at 32 px, are written out with numpy, scipy and OpenCV.
"""

# ruff: noqa: NPY002 (the package draws from numpy's global state, so the references beside it do too)

import importlib.resources
from collections.abc import Callable
from functools import lru_cache
from io import BytesIO

import cv2
import numpy as np
import torch
from imagecorruptions import corrupt as package_corrupt
from imagecorruptions import corruptions as package
from PIL import Image
from scipy.ndimage import map_coordinates
from skimage.color import hsv2rgb, rgb2hsv
from skimage.filters import gaussian
from skimage.util import random_noise
from sklearn.datasets import load_sample_image
from torch import Tensor

MOTION_BLUR = {
    32: [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)],
    224: [(10, 3), (15, 5), (15, 8), (15, 12), (20, 15)],
}
SNOW = {
    32: [
        *((0.1, 0.2, 1, 0.6, 8, 3, 0.95), (0.1, 0.2, 1, 0.5, 10, 4, 0.9), (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9)),
        *((0.25, 0.3, 2.25, 0.6, 12, 6, 0.85), (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8)),
    ],
    224: [
        *((0.1, 0.3, 3, 0.5, 10, 4, 0.8), (0.2, 0.3, 2, 0.5, 12, 4, 0.7), (0.55, 0.3, 4, 0.9, 12, 8, 0.7)),
        *((0.55, 0.3, 4.5, 0.85, 12, 8, 0.65), (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55)),
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


@lru_cache
def photographs(size: int, count: int = 4) -> np.ndarray:
    """Return square crops of two photographs in turn, (count, size, size, 3), 8 bits; small ones hold whole objects."""
    pictures = [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]
    starts = [(pictures[n % 2], 3 * (n % 64), 6 * (n % 64)) for n in range(count)]
    crops = [picture[top : top + 224, left : left + 224] for picture, top, left in starts]
    return np.stack([cv2.resize(crop, (size, size), interpolation=cv2.INTER_AREA) for crop in crops])


def tensor(images: np.ndarray) -> Tensor:
    """Return 8-bit images (N, H, W, 3) as floats (N, 3, H, W) in [0, 1]."""
    return torch.from_numpy(np.array(images)).permute(0, 3, 1, 2).float() / 255


def defocus_blur(image: np.ndarray, radius: float, alias_blur: float) -> np.ndarray:
    return np.clip(cv2.filter2D(image / 255.0, -1, package.disk(radius, alias_blur)), 0, 1) * 255


def zoom_blur(image: np.ndarray, stop: float) -> np.ndarray:
    factors = np.arange(1, stop, 0.01)
    total = (image / 255.0).astype(np.float32)
    total = total + sum(package.clipped_zoom(total, factor)[:32, :32] for factor in factors)
    return total / (len(factors) + 1) * 255


def brightness(image: np.ndarray, amount: float) -> np.ndarray:
    hsv = rgb2hsv(image / 255.0)
    hsv[..., 2] = np.clip(hsv[..., 2] + amount, 0, 1)
    return hsv2rgb(hsv) * 255


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
    means = image.mean(axis=(0, 1))
    return np.clip((image - means) * factor + means, 0, 255)


def pixelate(image: np.ndarray, factor: float) -> np.ndarray:
    side = int(32 * factor)
    small = Image.fromarray(image).resize((side, side), Image.Resampling.BOX)
    return np.asarray(small.resize((32, 32), Image.Resampling.BOX))


def jpeg_compression(image: np.ndarray, quality: int) -> np.ndarray:
    buffer = BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


def gaussian_noise(image: np.ndarray, sigma: float) -> np.ndarray:
    return image + 255 * np.random.normal(size=image.shape, scale=sigma)


def shot_noise(image: np.ndarray, photons: float) -> np.ndarray:
    return 255 * np.random.poisson(image / 255 * photons) / photons


def impulse_noise(image: np.ndarray, amount: float) -> np.ndarray:
    return 255 * random_noise(image / 255, mode="s&p", amount=amount)


def glass_blur(image: np.ndarray, sigma: float, reach: int, iterations: int) -> np.ndarray:
    blurred = np.uint8(gaussian(image / 255, sigma=sigma, channel_axis=-1) * 255)
    seed = int(np.random.randint(2**31))
    blurred = package._shuffle_pixels_njit_glass_blur(32, 32, blurred, (sigma, reach, iterations), seed)
    return 255 * gaussian(blurred / 255, sigma=sigma, channel_axis=-1)


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


def elastic_transform(image: np.ndarray, alpha: float, sigma: float, jitter: float) -> np.ndarray:
    image = image.astype(np.float32) / 255
    side = image.shape[0]
    unit = 244 if side == 224 else side  # the original multiplies by 244 where it means 224
    corners = np.float32([[1, 1], [1, -1], [-1, -1]]) * (side // 3) + side // 2
    moved = corners + np.random.uniform(-jitter * unit, jitter * unit, size=(3, 2)).astype(np.float32)
    matrix = cv2.getAffineTransform(corners, moved)
    image = cv2.warpAffine(image, matrix, (side, side), borderMode=cv2.BORDER_REFLECT_101)
    noise = np.random.uniform(-1, 1, size=(2, side, side))
    smooth = [gaussian(part, sigma * unit, mode="reflect", truncate=3) if sigma else part for part in noise]
    places = np.indices((side, side)) + alpha * unit * np.stack(smooth)
    return 255 * np.stack([map_coordinates(image[..., k], places, order=1, mode="reflect") for k in range(3)], axis=-1)


Original = tuple[Callable[..., np.ndarray], list[tuple[float, ...]]]
DETERMINISTIC: dict[str, Original] = {  # CIFAR-10-C
    "defocus_blur": (defocus_blur, [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)]),
    "zoom_blur": (zoom_blur, [(1.06,), (1.11,), (1.16,), (1.21,), (1.26,)]),
    "brightness": (brightness, [(0.05,), (0.1,), (0.15,), (0.2,), (0.3,)]),
    "contrast": (contrast, [(0.75,), (0.5,), (0.4,), (0.3,), (0.15,)]),
    "pixelate": (pixelate, [(0.95,), (0.9,), (0.85,), (0.75,), (0.65,)]),
    "jpeg_compression": (jpeg_compression, [(80,), (65,), (58,), (50,), (40,)]),
}
RANDOM: dict[str, Original] = {
    "gaussian_noise": (gaussian_noise, [(0.04,), (0.06,), (0.08,), (0.09,), (0.10,)]),
    "shot_noise": (shot_noise, [(500,), (250,), (100,), (75,), (50,)]),
    "impulse_noise": (impulse_noise, [(0.01,), (0.02,), (0.03,), (0.05,), (0.07,)]),
    "glass_blur": (glass_blur, [(0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)]),
    "frost": (frost, FROST[32]),
    "elastic_transform": (
        elastic_transform,
        [(0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)],
    ),
}
ELASTIC_224 = [(2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)]
IMAGENET: dict[str, Original] = {"frost": (frost, FROST[224]), "elastic_transform": (elastic_transform, ELASTIC_224)}


def original(image: np.ndarray, name: str, severity: int) -> np.ndarray:
    """Return an 8-bit image of 32 or 224 px under the original corruption, as floats or in 8 bits."""
    written_out = DETERMINISTIC | RANDOM if len(image) == 32 else IMAGENET
    if name not in written_out:
        return package_corrupt(image, severity=severity, corruption_name=name)
    apply, strengths = written_out[name]
    return apply(image, *strengths[severity - 1])
