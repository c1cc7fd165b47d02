"""Random resized crops as torchvision makes them; a network trained on crops of 28 from 32 pixels, read at 28 of 32."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Generator, nn
from torchvision.transforms.v2 import CenterCrop, Resize
from torchvision.transforms.v2 import functional as F

from byov.data.transforms import TRIES, ResizedCrop, place_crops
from byov.runs import Reading, open_run
from byov.train.config import load_config
from byov.train.supervised import Supervised, start


def test_it_cuts_and_resizes_as_torchvision_does() -> None:
    """The same boxes, antialiased bicubic; a flip where the uniform says so."""
    images = torch.rand(6, 3, 20, 24, generator=Generator().manual_seed(0))
    crop = ResizedCrop(size=12, scale=(0.2, 0.9), ratio=(0.5, 2.0))
    uniforms = crop.draw(6, Generator().manual_seed(1))
    boxes = place_crops(crop.scale, crop.ratio, *uniforms.split((2 * TRIES, 2, 1), 1)[:2], 20, 24)
    flipped = uniforms[:, -1] < 0.5
    assert 0 < int(flipped.sum()) < 6
    for i, found in enumerate(crop.render(images, uniforms)):
        top, left, height, width = (int(box[i]) for box in boxes)
        part = images[i, :, top : top + height, left : left + width]
        expected = F.resize(part, [12, 12], F.InterpolationMode.BICUBIC, antialias=True).clamp(0, 1)
        expected = expected.flip(-1) if flipped[i] else expected
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-3)


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
    words += [
        "crop.size=28",
        "train.epochs=1",
        "train.batch=8",
        "train.workers=0",
        "train.warmup=0",
        "data.holdout=0.25",
    ]
    recipe = load_config(Supervised, None, words)
    assert start(recipe, tmp_path / "run")
    assert start(recipe, tmp_path / "run", resume=True)
    run = open_run(tmp_path / "run", Reading(root=tmp_path, trust=True))
    assert run.images.images.shape == (16, 3, 28, 28)
    with Image.open(tmp_path / "imagenet" / "val" / "cat" / "0.png") as file:
        expected = CenterCrop(28)(Resize(32, F.InterpolationMode.BICUBIC)(file.convert("RGB")))
    assert np.abs(np.asarray(expected, int) - run.images.images[0].permute(1, 2, 0).numpy().astype(int)).max() <= 1
    assert run.load_own("holdout").images.shape[-1] == 28
    assert run.at_mean.mean.shape == (16, 2)
