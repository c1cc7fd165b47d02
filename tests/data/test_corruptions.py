"""Corruptions against their originals: value by value with the same draws, else by the statistics of the change.

The originals keep eight bits, ours keep floats, hence the tolerance of one level where nothing is random.
"""

import cv2
import numpy as np
import pytest
import torch
from imagecorruptions import corruptions as package
from PIL import Image
from scipy.ndimage import map_coordinates
from skimage.filters import gaussian
from small_networks import seeded
from torch import Tensor

from byov.data import image_ops
from byov.data.corruptions import corrupt
from byov.data.corruptions.blur import glass_sources
from byov.data.corruptions.digital import box_resize, jittered_affine
from byov.data.corruptions.weather import frost_texture, plasma
from byov.data.shift import smooth_noise

from .originals import DETERMINISTIC, FOG, FROST, MOTION_BLUR, RANDOM, SNOW, original, photographs, tensor

LEVEL = 1 / 255 + 1e-4
EACH = pytest.mark.parametrize(("size", "severity"), [(size, k) for size in (32, 224) for k in (1, 2, 3, 4, 5)])


def array(image: Tensor) -> np.ndarray:
    return image.permute(1, 2, 0).numpy()


@EACH
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_corruptions_equal_the_original_to_one_level(name: str, size: int, severity: int) -> None:
    images = photographs(size)
    expected = tensor(np.stack([original(image, name, severity) for image in images]))
    difference = (corrupt(tensor(images), name, severity) - expected).abs().max()
    assert difference <= (1e-6 if name == "jpeg_compression" else LEVEL)


@pytest.mark.parametrize(("height", "width"), [(13, 20), (31, 9), (64, 45), (21, 32)])
def test_box_resize_is_pillows(height: int, width: int) -> None:
    image = photographs(32)[1][:21]
    expected = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BOX))
    assert (box_resize(tensor(image[None]), height, width) - tensor(expected[None])).abs().max() <= LEVEL


@EACH
def test_motion_blur_with_the_same_angles(size: int, severity: int) -> None:
    images, (radius, sigma) = tensor(photographs(size, 2)), MOTION_BLUR[size][severity - 1]
    angles = torch.rand(2, generator=seeded()) * 90 - 45
    found = corrupt(images, "motion_blur", severity, seeded())
    for image, angle, result in zip(images, angles.tolist(), found, strict=True):
        expected = package._motion_blur(array(image), radius, sigma, angle)
        assert np.abs(array(result) - expected).max() < 1e-4


@EACH
def test_snow_with_the_same_flakes_and_angles(size: int, severity: int) -> None:
    images = tensor(photographs(size, 2))
    mean, std, zoom, threshold, radius, sigma, keep = SNOW[size][severity - 1]
    draws = seeded()
    kept = int(np.ceil(size / zoom))
    noise = torch.randn(2, kept, kept, generator=draws) * std + mean
    angles = torch.rand(2, generator=draws) * 90 - 135
    found = corrupt(images, "snow", severity, seeded())
    for image, flakes, angle, result in zip(images, noise.numpy(), angles.tolist(), found, strict=True):
        canvas = np.zeros((size, size, 1), dtype=np.float64)
        top = (size - kept) // 2
        canvas[top : top + kept, top : top + kept, 0] = flakes
        layer = package.clipped_zoom(canvas, zoom)[..., 0]
        trim = (layer.shape[0] - size) // 2
        layer = layer[trim : trim + size, trim : trim + size]
        layer[layer < threshold] = 0
        layer = package._motion_blur(np.clip(layer, 0, 1), radius, sigma, angle)[..., None]
        x = array(image)
        x = keep * x + (1 - keep) * np.maximum(x, cv2.cvtColor(x, cv2.COLOR_RGB2GRAY)[..., None] * 1.5 + 0.5)
        difference = np.abs(array(result) - np.clip(x + layer + np.rot90(layer, k=2), 0, 1))
        # Two layers in eight bits make up to one level; a flake at the threshold may fall on the other side.
        assert np.quantile(difference, 0.999) < LEVEL
        assert difference.mean() < 0.5 / 255


@EACH
def test_frost_and_fog_blend_their_textures_with_the_published_weights(size: int, severity: int) -> None:
    images = tensor(photographs(size, 2))
    keep, weight = FROST[size][severity - 1]
    expected = keep * images + weight * frost_texture(2, size, size, images, seeded())
    torch.testing.assert_close(corrupt(images, "frost", severity, seeded()), expected.clamp(0, 1), atol=1e-5, rtol=0)
    density, decay = FOG[size][severity - 1]
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
    pairs = [torch.stack((t[:, :-1].flatten(), t[:, 1:].flatten())) for t in textures.mean(dim=1)[:20]]
    neighbours = torch.stack([torch.corrcoef(pair)[0, 1] for pair in pairs])
    assert 0.3 < float(neighbours.mean()) < 0.85  # a texture, neither noise nor a plain


@pytest.mark.parametrize(("size", "decay"), [(32, 3.0), (64, 1.4)])
def test_plasma_with_the_same_draws(size: int, decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = seeded(3)

    def same_uniform(low: float, high: float, shape: tuple[int, ...]) -> np.ndarray:
        return (torch.rand((1, *shape), generator=draws, dtype=torch.float64)[0] * (high - low) + low).numpy()

    found = plasma(1, size, decay, torch.zeros((), dtype=torch.float64), seeded(3))[0]
    monkeypatch.setattr(package.np.random, "uniform", same_uniform)
    expected = package.plasma_fractal(size, decay)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)  # the original keeps single precision


@pytest.mark.parametrize("reach", [1, 2, 3, 4])
def test_glass_shuffle_with_the_same_offsets(reach: int) -> None:
    height, width = 40, 33
    offsets = torch.randint(-reach, reach, (2, 5, height - 2 * reach, width - 2 * reach), generator=seeded(reach))
    found = glass_sources(offsets[0], offsets[1], height, width, reach)
    for n in range(5):
        # Three equal channels of pixel numbers: rows of an array are views, which is what makes the original copy.
        pixels = np.repeat(np.arange(height * width).reshape(height, width, 1), 3, axis=2)
        for h in range(height - reach, reach, -1):
            for w in range(width - reach, reach, -1):
                dy, dx = offsets[:, n, h - reach - 1, w - reach - 1].tolist()
                pixels[h, w], pixels[h + dy, w + dx] = pixels[h + dy, w + dx], pixels[h, w]
        assert np.array_equal(found[n].numpy(), pixels[..., 0].ravel())


def test_elastic_transforms_affine_map_with_the_same_draws() -> None:
    jitter = torch.rand(1, 3, 2, generator=seeded(5)) * 2 * 12.0 - 12.0
    corners = np.float32([[112 + 74, 112 + 74], [112 + 74, 112 - 74], [112 - 74, 112 - 74]])
    matrix = cv2.getAffineTransform(corners, corners + jitter[0].numpy())
    inverse = jittered_affine(torch.zeros(1, 3, 224, 224), 12.0, seeded(5))
    np.testing.assert_allclose(inverse[0].numpy(), cv2.invertAffineTransform(matrix), atol=1e-3)


@pytest.mark.parametrize("sigma", [0.05, 0.25, 0.4, 0.7, 1.5, 6.0])
def test_gaussian_blur_is_scikit_images(sigma: float) -> None:
    images = photographs(32)[:, :20] / 255.0
    expected = np.stack([gaussian(image, sigma=sigma, channel_axis=-1) for image in images])
    found = image_ops.gaussian_blur(torch.from_numpy(images).permute(0, 3, 1, 2), sigma)
    np.testing.assert_allclose(found.permute(0, 2, 3, 1).numpy(), expected, atol=1e-12)


def test_warps_are_opencvs_and_scipys() -> None:
    image = photographs(224)[0].astype(np.float32) / 255
    batch = torch.from_numpy(image).permute(2, 0, 1)[None]
    matrix = np.array([[0.9, 0.1, 12.5], [-0.15, 1.05, -7.25]])
    expected = cv2.warpAffine(image, matrix, (224, 224), borderMode=cv2.BORDER_REFLECT_101)
    inverse = torch.from_numpy(cv2.invertAffineTransform(matrix))[None]
    moved = image_ops.affine(batch, inverse, "reflect")[0].permute(1, 2, 0).numpy()
    assert np.abs(moved - expected).mean() < 2e-3  # OpenCV rounds coordinates to 1/32 pixel

    noise = torch.rand(2, 1, 224, 224, generator=torch.Generator().manual_seed(6)) * 2 - 1
    for sigma in (2.44, 170.8):
        field = smooth_noise(batch, sigma, torch.Generator().manual_seed(6))
        smooth = [gaussian(part[0].double().numpy(), sigma, mode="reflect", truncate=3) for part in noise]
        np.testing.assert_allclose(field[:, 0].numpy(), np.stack(smooth), atol=1e-5)

    field = torch.stack((2700 * torch.from_numpy(smooth[0])[None].float(), 25 * noise[0]))
    places = np.indices((224, 224)) + field[:, 0].double().numpy()
    expected = np.stack([map_coordinates(image[..., c], places, order=1, mode="reflect") for c in range(3)])
    np.testing.assert_allclose(image_ops.displace(batch, field)[0].numpy(), expected, atol=1e-4)


# Noise over a whole image needs few draws; what varies between draws as a whole needs more.
REPEATS = {"motion_blur": 6, "snow": 4, "frost": 12, "fog": 10, "elastic_transform": 4}
CASES = [(32, name, severity, 24) for name in RANDOM for severity in (1, 2, 3, 4, 5)]
CASES += [(224, name, severity, REPEATS.get(name, 2)) for name in {**RANDOM, **REPEATS} for severity in (1, 2, 3, 4, 5)]


@pytest.mark.parametrize(("size", "name", "severity", "repeats"), CASES)
def test_the_change_has_the_originals_statistics(size: int, name: str, severity: int, repeats: int) -> None:
    """Mean and standard deviation of the change of each image, compared with their standard error over the draws."""
    images = photographs(size, 2)
    np.random.seed(severity)  # noqa: NPY002 (the package draws from numpy's global state)
    rounds = [np.stack([original(image, name, severity) for image in images]) for _ in range(repeats)]
    originals = torch.stack([tensor(np.uint8(np.clip(each, 0, 255))) for each in rounds]) - tensor(images)
    batch = tensor(images).repeat(max(repeats, 160 * 32 // size), 1, 1, 1)
    shifted = (corrupt(batch, name, severity, seeded(severity)) * 255).floor() / 255  # the originals cut to eight bits
    ours = (shifted - batch).unflatten(0, (-1, 2))
    margin = 0.03 if name == "frost" else 0.003  # frost's textures are not the same; one level is 0.0039
    for statistic in (torch.mean, torch.std):
        expected, found = statistic(originals, dim=(2, 3, 4)), statistic(ours, dim=(2, 3, 4))
        spread = expected.var(dim=0) / len(expected) + found.var(dim=0) / len(found)
        assert ((found.mean(dim=0) - expected.mean(dim=0)).abs() < margin + 4 * spread.sqrt()).all()
        assert (spread.sqrt() < 0.04).all()  # otherwise the test could not fail


@pytest.mark.parametrize(
    ("table", "severity", "sigma", "photons", "amount"), [("imagenet", 1, 0.08, 60, 0.03), ("cifar", 5, 0.10, 50, 0.07)]
)
def test_noises_have_their_closed_form_moments_on_grey(
    table: str, severity: int, sigma: float, photons: int, amount: float
) -> None:
    grey = torch.full((16, 3, 96, 96), 0.5)  # far from 0 and 1, where clipping would change the moments
    change = corrupt(grey, "gaussian_noise", severity, seeded(), table=table) - grey
    assert abs(float(change.mean())) < 5 * sigma / change.numel() ** 0.5
    assert abs(float(change.std()) / sigma - 1) < 5 / (2 * change.numel()) ** 0.5

    counts = corrupt(grey, "shot_noise", severity, seeded(), table=table) * photons
    assert abs(float(counts.mean()) - photons / 2) < 5 * (photons / 2 / counts.numel()) ** 0.5
    assert abs(float(counts.var()) / (photons / 2) - 1) < 0.02
    assert torch.equal(counts.round().mul(1e3).round(), counts.mul(1e3).round())

    shifted = corrupt(grey, "impulse_noise", severity, seeded(), table=table)
    for extreme in (0, 1):
        share = float((shifted == extreme).float().mean())
        assert abs(share - amount / 2) < 5 * (amount / 2 / shifted.numel()) ** 0.5
