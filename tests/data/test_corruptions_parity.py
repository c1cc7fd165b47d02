"""Corruptions against their originals where nothing is random, and with the same draws where something is.

At 224 px the reference is the package `imagecorruptions`; at 32 px its functions with CIFAR-10-C's parameters, which
are written out here a second time. The originals keep eight bits, ours keep floats, hence the tolerance of one level.
"""

from io import BytesIO

import cv2
import numpy as np
import pytest
import torch
from imagecorruptions import corrupt as reference_corrupt
from imagecorruptions import corruptions as reference
from PIL import Image
from scipy.ndimage import map_coordinates
from skimage.color import hsv2rgb, rgb2hsv
from skimage.filters import gaussian
from sklearn.datasets import load_sample_image

from byov.data import image_ops
from byov.data.corruptions import corrupt
from byov.data.corruptions.blur import glass_sources
from byov.data.corruptions.digital import box_resize, jittered_affine
from byov.data.corruptions.weather import plasma
from byov.data.image_ops import affine, jpeg, warp
from byov.data.shift import smooth_noise

LEVEL = 1 / 255 + 1e-4


def photographs(size: int) -> np.ndarray:
    """Four square crops (4, size, size, 3), 8 bits: at 32 px shrunk, so that they hold whole objects."""
    crops = [
        load_sample_image(name)[top : top + 224, 160:384] for name in ("china.jpg", "flower.jpg") for top in (60, 190)
    ]
    if size != 224:
        crops = [cv2.resize(crop, (size, size), interpolation=cv2.INTER_AREA) for crop in crops]
    return np.stack(crops)


def tensor(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(images)).permute(0, 3, 1, 2).float() / 255


def cifar_defocus_blur(image: np.ndarray, severity: int) -> np.ndarray:
    kernel = reference.disk(*[(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)][severity - 1])
    return np.clip(cv2.filter2D(image / 255.0, -1, kernel), 0, 1) * 255


def cifar_zoom_blur(image: np.ndarray, severity: int) -> np.ndarray:
    factors = np.arange(1, [1.06, 1.11, 1.16, 1.21, 1.26][severity - 1], 0.01)
    total = (image / 255.0).astype(np.float32)
    total = total + sum(reference.clipped_zoom(total, factor)[:32, :32] for factor in factors)
    return total / (len(factors) + 1) * 255


def cifar_brightness(image: np.ndarray, severity: int) -> np.ndarray:
    hsv = rgb2hsv(image / 255.0)
    hsv[..., 2] = np.clip(hsv[..., 2] + [0.05, 0.1, 0.15, 0.2, 0.3][severity - 1], 0, 1)
    return hsv2rgb(hsv) * 255


def cifar_contrast(image: np.ndarray, severity: int) -> np.ndarray:
    means = image.mean(axis=(0, 1))
    return np.clip((image - means) * [0.75, 0.5, 0.4, 0.3, 0.15][severity - 1] + means, 0, 255)


def cifar_pixelate(image: np.ndarray, severity: int) -> np.ndarray:
    side = int(32 * [0.95, 0.9, 0.85, 0.75, 0.65][severity - 1])
    small = Image.fromarray(image).resize((side, side), Image.Resampling.BOX)
    return np.asarray(small.resize((32, 32), Image.Resampling.BOX))


def pillow_jpeg(image: np.ndarray, quality: int) -> np.ndarray:
    buffer = BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer))


CIFAR = {
    "defocus_blur": cifar_defocus_blur,
    "zoom_blur": cifar_zoom_blur,
    "brightness": cifar_brightness,
    "contrast": cifar_contrast,
    "pixelate": cifar_pixelate,
}


@pytest.mark.parametrize("name", CIFAR)
@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("size", [32, 224])
def test_deterministic_corruptions_equal_the_original_to_one_level(name: str, severity: int, size: int) -> None:
    images = photographs(size)
    if size == 224:
        expected = [reference_corrupt(image, severity=severity, corruption_name=name) for image in images]
    else:
        expected = [CIFAR[name](image, severity) for image in images]
    found = corrupt(tensor(images), name, severity)
    assert (found - tensor(np.stack(expected))).abs().max() <= LEVEL


@pytest.mark.parametrize(("size", "qualities"), [(32, (80, 65, 58, 50, 40)), (224, (25, 18, 15, 10, 7))])
def test_jpeg_compression_has_the_originals_qualities(size: int, qualities: tuple[int, ...]) -> None:
    images = photographs(size)
    for severity, quality in enumerate(qualities, start=1):
        expected = tensor(np.stack([pillow_jpeg(image, quality) for image in images]))
        error = (corrupt(tensor(images), "jpeg_compression", severity) - expected).abs() * 255
        # Levels of 255. Now and then a DCT coefficient rounds the other way, which moves a whole block by a step.
        assert error.mean() < 0.2
        assert (error > 1).float().mean() < 0.05


@pytest.mark.parametrize("shape", [(33, 47), (40, 24), (17, 64), (48, 48)])
def test_jpeg_continues_images_that_do_not_fill_their_blocks(shape: tuple[int, int]) -> None:
    image = photographs(224)[0][: shape[0], : shape[1]]
    error = (jpeg(tensor(image[None]), 30) - tensor(pillow_jpeg(image, 30)[None])).abs() * 255
    assert error.mean() < 0.02
    grey = np.ascontiguousarray(image[..., 1])
    found = jpeg(torch.from_numpy(grey)[None, None] / 255, 30)[0, 0] * 255
    assert (found - torch.from_numpy(pillow_jpeg(grey, 30).astype(np.float32))).abs().mean() < 0.02


@pytest.mark.parametrize(("height", "width"), [(13, 20), (31, 9), (64, 45), (21, 32)])
def test_box_resize_is_pillows(height: int, width: int) -> None:
    image = photographs(32)[1][:21]
    expected = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))
    assert (box_resize(tensor(image[None]), height, width) - tensor(expected[None])).abs().max() <= LEVEL


@pytest.mark.parametrize("sigma", [0.05, 0.25, 0.4, 0.7, 1.5, 6.0])
def test_gaussian_blur_is_scikit_images(sigma: float) -> None:
    images = photographs(32)[:, :20] / 255.0
    expected = np.stack([gaussian(image, sigma=sigma, channel_axis=-1) for image in images])
    found = image_ops.gaussian_blur(torch.from_numpy(images).permute(0, 3, 1, 2), sigma)
    np.testing.assert_allclose(found.permute(0, 2, 3, 1).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(("radius", "sigma"), [(6, 1.0), (9, 2.5), (10, 3.0), (15, 12.0)])
@pytest.mark.parametrize("low", [-45.0, -135.0])
def test_motion_blur_is_the_originals_for_the_same_angles(radius: int, sigma: float, low: float) -> None:
    images = photographs(32)
    angles = torch.tensor([low, low + 17.3, low + 45.0, low + 81.9], dtype=torch.float64)
    expected = [
        reference._motion_blur(image, radius, sigma, float(angle)) for image, angle in zip(images, angles, strict=True)
    ]
    found = image_ops.motion_blur(tensor(images), radius, sigma, angles)
    assert (found - tensor(np.stack(expected))).abs().max() < 1e-5


@pytest.mark.parametrize("reach", [1, 2, 3, 4])
def test_glass_shuffle_is_the_originals_for_the_same_offsets(reach: int) -> None:
    height, width = 40, 33
    generator = torch.Generator().manual_seed(reach)
    offsets = torch.randint(-reach, reach, (2, 5, height - 2 * reach, width - 2 * reach), generator=generator)
    found = glass_sources(offsets[0], offsets[1], height, width, reach)
    for n in range(5):
        # Three equal channels of pixel numbers: rows of an array are views, which is what makes the original copy.
        pixels = np.repeat(np.arange(height * width).reshape(height, width, 1), 3, axis=2)
        for h in range(height - reach, reach, -1):
            for w in range(width - reach, reach, -1):
                dy, dx = offsets[:, n, h - reach - 1, w - reach - 1].tolist()
                pixels[h, w], pixels[h + dy, w + dx] = pixels[h + dy, w + dx], pixels[h, w]
        assert np.array_equal(found[n].numpy(), pixels[..., 0].ravel())


@pytest.mark.parametrize(("size", "decay"), [(32, 3.0), (64, 1.4)])
def test_plasma_is_the_originals_for_the_same_draws(size: int, decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = torch.Generator().manual_seed(3)

    def same_uniform(low: float, high: float, shape: tuple[int, ...]) -> np.ndarray:
        return (torch.rand((1, *shape), generator=draws, dtype=torch.float64)[0] * (high - low) + low).numpy()

    found = plasma(1, size, decay, torch.zeros((), dtype=torch.float64), torch.Generator().manual_seed(3))[0]
    monkeypatch.setattr(reference.np.random, "uniform", same_uniform)
    expected = reference.plasma_fractal(size, decay)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)  # the original keeps single precision


def test_elastic_transforms_parts_are_the_originals_for_the_same_draws() -> None:
    image = photographs(224)[0].astype(np.float32) / 255
    batch = torch.from_numpy(image).permute(2, 0, 1)[None]
    jitter = torch.rand(1, 3, 2, generator=torch.Generator().manual_seed(5)) * 2 * 12.0 - 12.0
    corners = np.float32([[112 + 74, 112 + 74], [112 + 74, 112 - 74], [112 - 74, 112 - 74]])
    matrix = cv2.getAffineTransform(corners, corners + jitter[0].numpy())
    inverse = jittered_affine(batch, 12.0, torch.Generator().manual_seed(5))
    np.testing.assert_allclose(inverse[0].numpy(), cv2.invertAffineTransform(matrix), atol=1e-3)

    expected = cv2.warpAffine(image, matrix, (224, 224), borderMode=cv2.BORDER_REFLECT_101)
    moved = affine(batch, inverse, "reflect")[0].permute(1, 2, 0).numpy()
    assert np.abs(moved - expected).mean() < 2e-3  # OpenCV rounds coordinates to 1/32 pixel

    noise = torch.rand(2, 1, 224, 224, generator=torch.Generator().manual_seed(6)) * 2 - 1
    for sigma in (2.44, 170.8):
        down, right = smooth_noise(batch, sigma, torch.Generator().manual_seed(6))
        smooth = [gaussian(part[0].double().numpy(), sigma, mode="reflect", truncate=3) for part in noise]
        np.testing.assert_allclose(down[0].numpy(), smooth[0], atol=1e-5)
        np.testing.assert_allclose(right[0].numpy(), smooth[1], atol=1e-5)

    rows, columns = np.meshgrid(np.arange(224.0), np.arange(224.0), indexing="ij")
    rows, columns = rows + 90 * smooth[0] * 30, columns + 25 * noise[0, 0].numpy()
    expected = np.stack([map_coordinates(image[..., c], (rows, columns), order=1, mode="reflect") for c in range(3)])
    found = warp(batch, torch.from_numpy(rows)[None].float(), torch.from_numpy(columns)[None].float(), "symmetric")[0]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)
