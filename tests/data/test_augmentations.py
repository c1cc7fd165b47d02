"""Each augmentation against a closed form or torchvision's or Pillow's operation."""

import math

import pytest
import torch
import torchvision.transforms.v2.functional as tv
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_image
from small_networks import seeded
from torch import Tensor
from torchvision.transforms import InterpolationMode

from byov.data.augmentations import AUGMENTATIONS, augment

LEVEL = 1 / 255 + 1e-4


@pytest.fixture(scope="module")
def images() -> Tensor:
    picture = torch.from_numpy(load_sample_image("flower.jpg").copy()).permute(2, 0, 1) / 255
    return torch.stack([picture[:, 20 * n : 20 * n + 96, 40 * n : 40 * n + 96] for n in range(8)])


def nearest(found: Tensor, candidates: list[Tensor]) -> Tensor:
    """Largest difference of each image to the closest of the candidates: a sign is drawn for each image."""
    return torch.stack([(found - c).abs().amax(dim=(1, 2, 3)) for c in candidates]).amin(dim=0)


def test_noises_have_their_closed_form_moments() -> None:
    grey = torch.full((16, 3, 64, 64), 0.5)
    for severity, sigma in enumerate((0.04, 0.08, 0.12), start=1):  # at which nothing is clipped
        assert abs(float(augment(grey, "gaussian_noise", severity, seeded()).std()) / sigma - 1) < 0.02
    for severity, amount in enumerate((0.01, 0.03, 0.06, 0.12, 0.2), start=1):
        hit = augment(grey, "salt_and_pepper", severity, seeded())
        assert abs(float((hit != 0.5).float().mean()) - amount) < 5 * (amount / (16 * 64 * 64)) ** 0.5
        assert torch.equal(hit[:, 0], hit[:, 2])  # whole pixels
        assert abs(float(hit.mean()) - 0.5) < 0.01


@pytest.mark.parametrize(("severity", "degrees"), enumerate((5, 10, 20, 30, 45), start=1))
def test_rotation_is_torchvisions(images: Tensor, severity: int, degrees: float) -> None:
    found = augment(images, "rotation", severity, seeded())
    turned = [tv.rotate(images, sign * degrees, InterpolationMode.BILINEAR) for sign in (1, -1)]
    inside = (slice(None), slice(None), slice(30, 66), slice(30, 66))  # torchvision blends its border otherwise
    assert nearest(found[inside], [t[inside] for t in turned]).max() < 1e-3
    assert float((found[:, :, 0, 0] == 0).float().mean()) == 1.0


@pytest.mark.parametrize(("severity", "slope"), enumerate((0.1, 0.2, 0.3, 0.4, 0.5), start=1))
def test_shear_moves_a_row_by_slope_times_its_height(severity: int, slope: float) -> None:
    columns = (torch.arange(81.0) / 80).expand(16, 3, 81, 81)
    change = (augment(columns, "shear", severity, seeded())[:, 0, 50, 40] - 0.5) * 80
    torch.testing.assert_close(change.abs(), torch.full((16,), slope * 10), atol=1e-3, rtol=0)
    assert len(change.sign().unique()) == 2


@pytest.mark.parametrize(("severity", "distance"), enumerate((0.05, 0.1, 0.15, 0.2, 0.3), start=1))
def test_translation_has_its_length_in_any_direction(severity: int, distance: float) -> None:
    ramp = torch.arange(81.0) / 80
    images = torch.stack((ramp.expand(81, 81), ramp.expand(81, 81).T, torch.zeros(81, 81))).repeat(64, 1, 1, 1)
    moved = (augment(images, "translation", severity, seeded())[:, :2, 40, 40] - 0.5) * 80
    torch.testing.assert_close(moved.norm(dim=1), torch.full((64,), distance * 81), atol=1e-2, rtol=0)
    assert moved.mean(dim=0).norm() < 0.4 * distance * 81  # no direction is preferred


def test_blur_spreads_a_point_by_sigma() -> None:
    point = torch.zeros(1, 1, 101, 101, dtype=torch.float64)
    point[..., 50, 50] = 1
    offsets = torch.arange(101) - 50.0
    for severity, sigma in enumerate((0.015, 0.025, 0.035, 0.05, 0.07), start=1):
        spread = augment(point, "blur", severity)[0, 0]
        assert math.isclose(float(spread.sum()), 1, abs_tol=1e-9)
        assert math.isclose(float((spread.sum(0) * offsets**2).sum()) ** 0.5, 101 * sigma, rel_tol=0.01)


def test_colour_augmentations_are_torchvisions(images: Tensor) -> None:
    for severity, factor in enumerate((0.75, 0.5, 0.3, 0.15, 0.0), start=1):
        expected = tv.adjust_saturation(images, factor)
        assert (augment(images, "saturation", severity) - expected).abs().max() < 1e-3  # other luma weights
    for severity, turns in enumerate((0.05, 0.1, 0.2, 0.3, 0.5), start=1):
        candidates = [tv.adjust_hue(images, sign * turns) for sign in (1, -1)]
        assert nearest(augment(images, "hue", severity, seeded()), candidates).max() < 1e-4
    for severity, factor in enumerate((0.7, 0.5, 0.35, 0.2, 0.1), start=1):
        assert (augment(images, "contrast", severity) - tv.adjust_contrast(images, factor)).abs().max() < 1e-3
    for severity, amount in enumerate((0.1, 0.2, 0.3, 0.4, 0.5), start=1):
        candidates = [(images + sign * amount).clamp(0, 1) for sign in (1, -1)]
        assert nearest(augment(images, "brightness", severity, seeded()), candidates).max() < 1e-6


def test_solarize_posterize_and_jpeg_are_torchvisions_and_pillows(images: Tensor) -> None:
    for severity, threshold in enumerate((0.9, 0.75, 0.6, 0.45, 0.3), start=1):
        assert torch.equal(augment(images, "solarize", severity), tv.solarize(images, threshold))
    for severity, quality in enumerate((50, 30, 20, 10, 5), start=1):
        assert torch.equal(augment(images, "jpeg", severity), tv.jpeg((images * 255).round().byte(), quality) / 255)
    pixels = (images[0] * 255).round().byte().permute(1, 2, 0)
    for severity, bits in enumerate((5, 4, 3, 2, 1), start=1):
        expected = tv.pil_to_tensor(ImageOps.posterize(Image.fromarray(pixels.numpy()), bits))
        assert torch.equal((augment(images, "posterize", severity)[0] * 255).round().byte(), expected)


def test_elastic_displaces_by_its_standard_deviation() -> None:
    side = 160
    ramp = (torch.arange(float(side)) / (side - 1)).expand(12, 1, side, side)
    for severity, distance in enumerate((0.005, 0.01, 0.015, 0.02, 0.03), start=1):
        moved = (augment(ramp, "elastic", severity, seeded()) - ramp)[..., 30:-30, 30:-30] * (side - 1)
        assert math.isclose(float(moved.std()), distance * side, rel_tol=0.1)


def test_cutout_covers_its_square_anywhere() -> None:
    black = torch.zeros(64, 3, 40, 60)
    for severity, length in enumerate((0.2, 0.3, 0.4, 0.5, 0.6), start=1):
        cut = augment(black, "cutout", severity, seeded())
        square = round(40 * length)
        assert torch.equal((cut == 0.5).sum(dim=(1, 2, 3)), torch.full((64,), 3 * square**2))
        rows, columns = (cut[:, 0] == 0.5).any(2), (cut[:, 0] == 0.5).any(1)
        assert torch.equal(rows.sum(1), torch.full((64,), square))
        assert len(rows.float().argmax(1).unique()) > 5
        assert len(columns.float().argmax(1).unique()) > 5


def test_every_augmentation_is_in_one_of_these_tests() -> None:
    named = {"gaussian_noise", "salt_and_pepper", "rotation", "shear", "translation", "blur", "saturation", "hue"}
    named |= {"contrast", "brightness", "solarize", "posterize", "elastic", "cutout", "jpeg"}
    assert set(AUGMENTATIONS) == named
