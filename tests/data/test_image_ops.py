"""Blurs, warps and JPEG against scikit-image, ImageMagick's motion blur, OpenCV, scipy and Pillow."""

import cv2
import numpy as np
import pytest
import torch
from imagecorruptions import corruptions as package
from scipy.ndimage import map_coordinates
from skimage.filters import gaussian

from byov.data import image_ops
from byov.data.shift import smooth_noise

from .originals import jpeg_compression, photographs, tensor


@pytest.mark.parametrize("shape", [(33, 47), (40, 24), (17, 64), (48, 48)])
def test_jpeg_is_pillows_also_where_blocks_are_not_full(shape: tuple[int, int]) -> None:
    image = photographs(224)[0][: shape[0], : shape[1]]
    assert torch.equal(image_ops.jpeg(tensor(image[None]), 30), tensor(jpeg_compression(image, 30)[None]))
    grey = np.ascontiguousarray(image[..., 1])
    found = image_ops.jpeg(torch.from_numpy(grey)[None, None] / 255, 30)[0, 0] * 255
    assert torch.equal(found.round().byte(), torch.from_numpy(jpeg_compression(grey, 30).copy()))


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
    pairs = zip(images, angles.tolist(), strict=True)
    expected = np.stack([package._motion_blur(image, radius, sigma, angle) for image, angle in pairs])
    assert (image_ops.motion_blur(tensor(images), radius, sigma, angles) - tensor(expected)).abs().max() < 1e-5


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
