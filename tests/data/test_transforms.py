"""Every batched image operation against torchvision's, one image at a time, with the same parameters."""

import re
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import CenterCrop, Resize
from torchvision.transforms.v2 import functional as reference

from byov.data import transforms
from byov.data.transforms import TRIES, CropFlip, ResizedCrop, place_crops
from byov.runs import Reading, open_run
from byov.train.config import load_config
from byov.train.supervised import Supervised, start

NAMES = ("brightness", "contrast", "saturation", "hue")
CLOSE = 5e-6  # float32 rounding over a few dozen operations on numbers in [0, 1]


def images(count: int = 12, channels: int = 3, height: int = 20, width: int = 17) -> torch.Tensor:
    return torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(0))


def spread(low: float, high: float, count: int = 12) -> torch.Tensor:
    return torch.linspace(low, high, count)


def on_planes(operation: Callable, x: torch.Tensor, *args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
    return torch.stack(operation(x.unbind(1), *args, **kwargs), 1)


@pytest.mark.parametrize("kernel", [3, 7, 23])
def test_blur_is_torchvisions(kernel: int) -> None:
    x, sigma = images(height=24, width=21), spread(0.1, 2.0)
    sigma[0] = 0.0
    ours = transforms.along_axes(x, *(transforms.blur_matrix(sigma, n, kernel) for n in (24, 21)))
    assert torch.equal(ours[0], x[0])  # σ = 0 spares the image exactly
    for i in range(1, 12):
        theirs = reference.gaussian_blur(x[i], [kernel, kernel], [float(sigma[i])] * 2)
        torch.testing.assert_close(ours[i], theirs, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("kernel", [4, 41])
def test_blur_refuses_an_impossible_kernel(kernel: int) -> None:
    with pytest.raises(ValueError, match="kernel is odd"):
        transforms.blur_matrix(torch.ones(2), 20, kernel)


@pytest.mark.parametrize("channels", [1, 3])
def test_neutral_strengths_are_exact(channels: int) -> None:
    x, one = images(channels=channels), torch.ones(12)
    assert torch.equal(on_planes(transforms.adjust_tone, x, one, one), x)
    assert torch.equal(on_planes(transforms.adjust_contrast, x, one), x)
    assert torch.equal(on_planes(transforms.adjust_hue, x, 0 * one), x)


@pytest.mark.parametrize("channels", [1, 3])
def test_jitter_follows_each_images_own_order(channels: int) -> None:
    """All 24 orders in one batch, with factors strong enough to clamp, so that the operations do not commute."""
    orders = list(permutations(range(4)))
    x = images(24, channels)
    factors = dict(zip(NAMES, (spread(0.4, 1.9, 24), spread(1.8, 0.3, 24), spread(0.2, 2.0, 24)), strict=False))
    hue = spread(-0.4, 0.45, 24)
    turn = torch.tensor([[order.index(operation) for operation in range(4)] for order in orders])
    ours = on_planes(transforms.jitter, x, **factors, hue=hue, turn=turn)
    for i, order in enumerate(orders):
        y = x[i]
        for name in (NAMES[operation] for operation in order):
            y = getattr(reference, f"adjust_{name}")(y, float((factors | {"hue": hue})[name][i]))
        torch.testing.assert_close(ours[i], y, rtol=0, atol=2e-5)


@pytest.mark.parametrize("levels", [0, 3])
def test_hue_is_torchvisions(levels: int) -> None:
    """Also where channels tie and where there is no colour at all (few grey levels make such pixels)."""
    x, shift = images(), spread(-0.5, 0.5)
    x = (x * levels).round() / levels if levels else x
    ours = on_planes(transforms.adjust_hue, x, shift)
    for i in range(12):
        torch.testing.assert_close(ours[i], reference.adjust_hue(x[i], float(shift[i])), rtol=0, atol=CLOSE)
    assert torch.equal(on_planes(transforms.adjust_hue, x[:, :1], shift), x[:, :1])


def test_gray_and_solarize_are_torchvisions() -> None:
    x, threshold = images(), spread(0.0, 1.0)
    threshold[-1] = 2.0
    torch.testing.assert_close(transforms.gray(x.unbind(1)), reference.rgb_to_grayscale(x)[:, 0], rtol=0, atol=CLOSE)
    ours = transforms.solarize(x, threshold)
    for i in range(11):
        assert torch.equal(ours[i], reference.solarize(x[i], float(threshold[i])))
    assert torch.equal(ours[-1], x[-1])


def test_normalize_is_torchvisions() -> None:
    x, mean, std = images(), (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    torch.testing.assert_close(transforms.normalize(x, mean, std), reference.normalize(x, list(mean), list(std)))
    assert torch.equal(transforms.normalize(x, None, None), x)


def test_autocast_does_not_round_the_weights() -> None:
    x, sigma = images(), spread(0.5, 2.0)
    matrices = [transforms.blur_matrix(sigma, n, 5) for n in (20, 17)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = transforms.along_axes(x, *matrices)
    assert torch.equal(ours, transforms.along_axes(x, *matrices))


def test_crop_flip_is_pad_crop_flip() -> None:
    """Each image equals torchvision's pad, crop and flip for the parameters that its uniforms stand for."""
    x = torch.randint(0, 256, (64, 3, 9, 11), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    augment = CropFlip(padding=4)
    uniforms = augment.draw(64, torch.Generator().manual_seed(1))
    ours = augment.render(x, uniforms)
    for i, (top, left, flip) in enumerate(uniforms.tolist()):
        theirs = reference.crop(reference.pad(x[i], [4] * 4), int(9 * top), int(9 * left), 9, 11)
        theirs = reference.horizontal_flip(theirs) if flip < 0.5 else theirs
        assert torch.equal(ours[i], theirs.float() / 255)


def test_crop_flip_counts() -> None:
    """All 81 shifts and both directions occur as often as they should: a delta image tells which was drawn."""
    count, n = 8100, 13
    x = torch.zeros(count, 1, n, n)
    x[:, :, 6, 5] = 1.0  # off-centre in x, so that a flip shows
    y = CropFlip()(x, torch.Generator().manual_seed(0))
    place = y.flatten(1).argmax(1)
    assert torch.equal(y.sum((1, 2, 3)), torch.ones(count))
    rows = torch.bincount(place // n, minlength=n)[2:11]
    assert ((rows - count / 9).abs() < 5 * (count / 9 * 8 / 9) ** 0.5).all()  # binomial, five standard deviations
    columns = torch.bincount(place % n, minlength=n)
    # unflipped columns 1…9, flipped 3…11: the ends belong to one direction alone
    assert ((columns[[1, 2, 10, 11]] - count / 18).abs() < 5 * (count / 18) ** 0.5).all()
    assert columns[0] == columns[12] == 0
    same = CropFlip()(x, torch.Generator().manual_seed(0))
    assert torch.equal(y, same)


def test_crop_flip_compiles_and_refuses_bad_settings() -> None:
    augment = CropFlip(mean=(0.5,), std=(0.2,))
    x, uniforms = torch.rand(4, 1, 8, 8), torch.rand(4, 3)
    compiled = torch.compile(augment.render, fullgraph=True, backend="eager")
    assert torch.equal(compiled(x, uniforms), augment.render(x, uniforms))
    with pytest.raises(ValueError, match="padding"):
        CropFlip(padding=-1)


# Random resized crops; a network trained on crops of 28 from 32 pixels, read at 28 of 32


def test_it_cuts_and_resizes_as_torchvision_does() -> None:
    """The same boxes, antialiased bicubic; a flip where the uniform says so."""
    images = torch.rand(6, 3, 20, 24, generator=torch.Generator().manual_seed(0))
    crop = ResizedCrop(size=12, scale=(0.2, 0.9), ratio=(0.5, 2.0))
    uniforms = crop.draw(6, torch.Generator().manual_seed(1))
    boxes = place_crops(crop.scale, crop.ratio, *uniforms.split((2 * TRIES, 2, 1), 1)[:2], 20, 24)
    flipped = uniforms[:, -1] < 0.5
    assert 0 < int(flipped.sum()) < 6
    for i, found in enumerate(crop.render(images, uniforms)):
        top, left, height, width = (int(box[i]) for box in boxes)
        part = images[i, :, top : top + height, left : left + width]
        expected = reference.resize(part, [12, 12], reference.InterpolationMode.BICUBIC, antialias=True).clamp(0, 1)
        expected = expected.flip(-1) if flipped[i] else expected
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)


def test_areas_and_aspects_are_in_their_ranges() -> None:
    crop = ResizedCrop(scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3))
    uniforms = crop.draw(4000, torch.Generator().manual_seed(0))
    _, _, height, width = place_crops(crop.scale, crop.ratio, *uniforms.split((2 * TRIES, 2, 1), 1)[:2], 256, 256)
    area, aspect = height * width / 256**2, width / height
    assert 0.078 < float(area.min()) < 0.09
    assert 0.97 < float(area.max()) <= 1
    assert 0.74 < float(aspect.min()) < 0.78
    assert 1.28 < float(aspect.max()) < 1.35
    torch.manual_seed(0)
    theirs = [RandomResizedCrop.get_params(torch.empty(1, 256, 256), [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(1000)]
    mean = sum(h * w for _, _, h, w in theirs) / 1000 / 256**2  # below 0.54: large ones fit less often
    assert float(area.mean()) == pytest.approx(mean, abs=4 * 0.26 * (1 / 4000 + 1 / 1000) ** 0.5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["augment=resized-crop", "crop.scale=[0.5,0.1]"], "crop.scale is a range above 0 and up to 1"),
        (["augment=resized-crop", "crop.size=0"], "crop.size is at least one pixel"),
        (["crop.size=28"], "[crop] is for augment = 'resized-crop', not for 'none'"),
    ],
)
def test_bad_crops_are_refused(changes: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        load_config(Supervised, None, changes)


def network(classes: int) -> nn.Module:
    """Only of 28 pixels a side."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, classes))


def test_the_paper_s_imagenet_is_read_as_224_of_256_pixels(tmp_path: Path) -> None:
    """D.3 in the small: crops of 28 pixels out of 32 in training; scaled to 32 and cut to 28 where it is read."""
    pixels = np.random.default_rng(0)
    for split in ("train", "val"):
        for label in ("cat", "dog"):
            folder = tmp_path / "imagenet" / split / label
            folder.mkdir(parents=True)
            for i in range(8):
                Image.fromarray(pixels.integers(0, 256, (40, 60, 3), np.uint8)).save(folder / f"{i}.png")
    words = [f"model.name=python:{__name__}:network", "posterior.family=none", "train.accelerator=cpu"]
    words += ["data.name=imagenet", f"data.root={tmp_path}", "data.image_size=32", "augment=resized-crop"]
    words += ["crop.size=28", "train.epochs=1", "train.batch=8", "train.workers=0", "train.warmup=0"]
    words += ["data.holdout=0.25"]
    recipe = load_config(Supervised, None, words)
    assert start(recipe, tmp_path / "run")
    assert start(recipe, tmp_path / "run", resume=True)
    run = open_run(tmp_path / "run", Reading(root=tmp_path, trust=True))
    assert run.images.images.shape == (16, 3, 28, 28)
    with Image.open(tmp_path / "imagenet" / "val" / "cat" / "0.png") as file:
        expected = CenterCrop(28)(Resize(32, reference.InterpolationMode.BICUBIC)(file.convert("RGB")))
    assert np.abs(np.asarray(expected, int) - run.images.images[0].permute(1, 2, 0).numpy().astype(int)).max() <= 1
    assert run.load_own("holdout").images.shape[-1] == 28
    assert run.at_mean.mean.shape == (16, 2)


def test_where_no_crop_fits_it_is_the_largest_central_one_of_an_allowed_aspect() -> None:
    """All of the area at an aspect from 3/4 to 4/3 is taller than a strip of 4 × 16 pixels."""
    tries, where = torch.rand(5, 2 * TRIES), torch.rand(5, 2)
    for (height, width), expected in {(4, 16): (0, 5, 4, 5), (16, 4): (5, 0, 5, 4)}.items():
        found = place_crops((1.0, 1.0), (3 / 4, 4 / 3), tries, where, height, width)
        assert [set(each.tolist()) for each in found] == [{value} for value in expected]
