"""Sets of images in memory and in picture files: contents, digests, resizing, holding out, formats."""

import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.datasets.folder import pil_loader
from torchvision.transforms.v2.functional import to_dtype

from byov.data import FolderSet, ImageSet, holdout, load


def some_images(count: int = 6, channels: int = 3, side: int = 5) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, channels, side, side), dtype=torch.uint8, generator=g)


def numbered(count: int, labels: list[int] | None = None) -> ImageSet:
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1)
    return ImageSet("x", images, None if labels is None else torch.tensor(labels), tuple("abcd"))


def test_mean_and_std_are_the_pixels() -> None:
    data = ImageSet("x", some_images(5000))
    pixels = data.images.double() / 255
    assert data.mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-12)
    assert data.std == pytest.approx(pixels.std((0, 2, 3), correction=0).tolist(), abs=1e-12)
    assert ImageSet("grey", torch.full((2, 1, 3, 3), 7, dtype=torch.uint8)).std == (1.0,)


def test_digest_tells_contents_apart() -> None:
    images, labels, names = some_images(), torch.arange(6), tuple("abcdef")
    data = ImageSet("x", images, labels, names)
    content = repr((6, 3, 5, 5)).encode() + images.numpy().tobytes() + labels.numpy().tobytes()
    assert data.digest == hashlib.sha256(content).hexdigest()[:12]
    assert ImageSet("y", images.clone(), labels, names).digest == data.digest
    other = images.clone()
    other[5, 2, 4, 4] += 1
    others = [ImageSet("x", other, labels, names), ImageSet("x", images, labels.flip(0), names)]
    assert len({each.digest for each in (data, *others, data.subset(torch.tensor([0, 1])))}) == 4


def test_resizing() -> None:
    data = ImageSet("x", some_images(3, 1, 8))
    large = data.resized(32, 3)
    assert large.images.shape == (3, 3, 32, 32)
    assert large.images.is_contiguous()
    assert torch.equal(large.images[:, 0], large.images[:, 2])
    assert torch.equal(large.resized(channels=1).images, data.resized(32).images)
    assert torch.equal(data.resized(8, 1).images, data.images)
    flat = ImageSet("x", torch.full((1, 1, 4, 4), 200, dtype=torch.uint8)).resized(9)
    assert flat.images.unique().tolist() == [200]
    colours = some_images(3)
    grey = ImageSet("x", colours).resized(channels=1).images[:, 0]
    expected = 0.299 * colours[:, 0] + 0.587 * colours[:, 1] + 0.114 * colours[:, 2]
    assert torch.equal(grey, expected.round().byte())
    with pytest.raises(ValueError, match="cannot become"):
        data.resized(channels=2)


@pytest.mark.parametrize(
    ("images", "labels", "sentence"),
    [
        (torch.rand(2, 3, 4, 4), None, "uint8"),
        (torch.zeros(2, 4, 4, dtype=torch.uint8), None, "N, C, H, W"),
        (torch.zeros(0, 1, 4, 4, dtype=torch.uint8), None, "none of them 0"),
        (some_images(2), torch.zeros(3, dtype=torch.int64), "one per image"),
        (some_images(2), torch.zeros(2), "int64"),
        (some_images(2), torch.tensor([0, 2]), "do not fit"),
        (some_images(2), torch.tensor([-1, 0]), "do not fit"),
    ],
)
def test_bad_sets(images: torch.Tensor, labels: torch.Tensor | None, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ImageSet("bad", images, labels, ("a", "b"))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=8, max_size=60), st.floats(0.2, 0.8), st.integers(0, 99))
def test_holdout_splits_every_class(labels: list[int], fraction: float, seed: int) -> None:
    shares = {label: round(fraction * labels.count(label)) for label in set(labels)}
    if not 0 < sum(shares.values()) < len(labels):
        return
    data = numbered(len(labels), labels)
    kept, held = holdout(data, fraction, seed)
    assert sorted([*kept.images.flatten().tolist(), *held.images.flatten().tolist()]) == list(range(len(labels)))
    assert {label: int((held.labels == label).sum()) for label in shares} == shares
    assert torch.equal(holdout(data, fraction, seed)[1].images, held.images)


def test_holdout_by_seed_and_without_labels() -> None:
    data = numbered(200)
    parts = [holdout(data, 0.1, seed)[1].images.flatten().tolist() for seed in range(3)]
    assert all(len(part) == 20 and part == sorted(part) for part in parts)
    assert len({tuple(part) for part in parts}) == 3
    for fraction in (0.0, 1.0):
        with pytest.raises(ValueError, match="between 0 and 1"):
            holdout(data, fraction)
    with pytest.raises(ValueError, match="too few"):
        holdout(data.subset(torch.arange(2)), 0.1)


def test_holding_out_a_part_of_a_folder(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(12)]
    for path in paths:
        path.write_bytes(b"any")
    data = FolderSet("x", tuple(map(str, paths)), torch.tensor([0] * 7 + [1] * 5), ("cat", "dog"))
    kept, held = holdout(data, 0.4)
    assert held.labels.tolist() == [0, 0, 0, 1, 1]
    assert sorted(kept.paths + held.paths) == sorted(data.paths)
    assert kept.digest != data.digest


@pytest.mark.parametrize("size", [(40, 20), (20, 40), (33, 20), (5, 7), (1, 90)])
def test_the_central_square_of_a_file_is_kept(tmp_path: Path, size: tuple[int, int]) -> None:
    """A horizontal and a vertical ramp: the crop's centre shows the picture's centre."""
    width, height = size
    ramp = np.zeros((height, width, 3), np.uint8)
    ramp[..., 0] = np.linspace(0, 255, width)[None, :]
    ramp[..., 1] = np.linspace(0, 255, height)[:, None]
    Image.fromarray(ramp).save(tmp_path / "0.png")
    image = FolderSet("x", (str(tmp_path / "0.png"),), image_size=20)[0]
    assert image.shape == (3, 20, 20)
    if min(size) > 1:
        assert (image[:2].float().mean((1, 2)) - 127.5).abs().max() < 6


# Picture files against torchvision: its ImageFolder where eight bits hold a picture, else its `to_dtype`


SIDE = 16
COLOURS = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
RGB = Image.fromarray(COLOURS)


def read(path: Path, channels: int = 3, image_size: int = SIDE) -> torch.Tensor | str:
    return FolderSet("x", (str(path),), image_size=image_size, channels=channels)[0]


def pixels(path: Path, channels: int = 3, image_size: int = SIDE) -> torch.Tensor:
    image = read(path, channels, image_size)
    assert isinstance(image, torch.Tensor), image
    return image


def transparent(mode: str) -> Image.Image:
    image = RGB.convert("RGBA")
    image.putalpha(Image.fromarray(COLOURS[..., 0]))
    return image.convert(mode)


def turned() -> dict[str, bytes]:
    exif = Image.Exif()
    exif[0x0112] = 6
    return {"exif": exif.tobytes()}


@pytest.mark.parametrize(
    ("name", "make", "options"),
    [
        ("grey.png", lambda: RGB.convert("L"), dict),
        ("palette.png", lambda: RGB.convert("P"), dict),
        ("clear.png", lambda: RGB.convert("P"), lambda: {"transparency": 3}),
        ("alpha.png", lambda: transparent("RGBA"), dict),
        ("grey_alpha.png", lambda: transparent("LA"), dict),
        ("print.jpg", lambda: RGB.convert("CMYK"), dict),
        ("turned.jpg", lambda: RGB, turned),
        ("animated.png", lambda: RGB, lambda: {"save_all": True, "append_images": [RGB.transpose(1)]}),
        ("pages.tif", lambda: RGB, lambda: {"save_all": True, "append_images": [RGB.transpose(1)]}),
        (
            "animated.webp",
            lambda: RGB,
            lambda: {"save_all": True, "lossless": True, "append_images": [Image.new("RGB", (16, 16))]},
        ),
    ],
)
def test_every_mode_is_read_as_torchvision_reads_it(
    tmp_path: Path, name: str, make: Callable[[], Image.Image], options: Callable[[], dict]
) -> None:
    """The first frame, alpha dropped, not turned: as its `ImageFolder` does."""
    make().save(tmp_path / name, **options())
    theirs = torch.from_numpy(np.array(pil_loader(str(tmp_path / name)))).permute(2, 0, 1)
    assert torch.equal(pixels(tmp_path / name), theirs)
    assert theirs.float().std() > 20  # a picture, neither black nor white


def ramp(dtype: type, highest: float) -> np.ndarray:
    return np.linspace(0, highest, SIDE * SIDE).reshape(SIDE, SIDE).astype(dtype)


@pytest.mark.parametrize("name", ["deep.png", "deep.tif", "deep.pgm"])
@pytest.mark.parametrize("channels", [1, 3])
def test_sixteen_bits_are_scaled_by_their_type(tmp_path: Path, name: str, channels: int) -> None:
    values = ramp(np.uint16, 65535)
    cv2.imwrite(str(tmp_path / name), values)
    expected = to_dtype(torch.from_numpy(values.astype(np.int32) << 15), torch.uint8, scale=True)
    assert torch.equal(expected, torch.from_numpy(values >> 8).byte())
    assert torch.equal(pixels(tmp_path / name, channels), expected.expand(channels, -1, -1))


def test_twelve_bits_of_a_tiff(tmp_path: Path) -> None:
    """As microscopes save them; written by hand, since Pillow only reads them. Two pixels to three bytes."""
    values = [0, 16, 2048, 4095]
    data = b"".join(((a << 12) | b).to_bytes(3, "big") for a, b in (values[:2], values[2:]))
    tags = {256: 2, 257: 2, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: 2, 279: len(data)}
    entries = b"".join(struct.pack("<HHLL", tag, 4, 1, value) for tag, value in tags.items())
    header = struct.pack("<2sHL", b"II", 42, 8 + len(data))
    (tmp_path / "a.tif").write_bytes(header + data + struct.pack("<H", len(tags)) + entries + bytes(4))
    assert pixels(tmp_path / "a.tif", 1, image_size=2).flatten().tolist() == [0, 1, 128, 255]


@pytest.mark.parametrize("name", ["colours.png", "colours.tif"])
def test_colours_of_sixteen_bits(tmp_path: Path, name: str) -> None:
    deep = COLOURS.astype(np.uint16) * 257
    cv2.imwrite(str(tmp_path / name), deep[..., ::-1])
    assert torch.equal(pixels(tmp_path / name), torch.from_numpy(COLOURS).permute(2, 0, 1))


def test_floating_point_pictures_are_scaled_from_the_unit_interval(tmp_path: Path) -> None:
    path, values = tmp_path / "float.tif", ramp(np.float32, 1)
    Image.fromarray(values).save(path)
    assert torch.equal(pixels(path, 1)[0], to_dtype(torch.from_numpy(values), torch.uint8, scale=True))
    for odd, said in ((values * 255, "from 0 to 255"), (values - 0.5, "from -0.5"), (values * np.nan, "nan")):
        Image.fromarray(odd).save(path)
        assert said in str(read(path))
    Image.fromarray(ramp(np.int32, 2**31 - 1)).save(path)
    assert "32 bits" in str(read(path))


@pytest.mark.parametrize("size", [(1, 20_000), (20_000, 1)])
def test_a_long_picture_takes_no_memory(tmp_path: Path, size: tuple[int, int]) -> None:
    """118 bytes that were 4 GB when their shorter side was brought to 224 pixels; the middle is what is seen."""
    image = Image.new("RGB", size, (10, 20, 30))
    image.putpixel((size[0] // 2, size[1] // 2), (200, 100, 50))
    image.save(tmp_path / "long.png")
    sides: list[int] = []
    resize = Image.Image.resize
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Image.Image, "resize", lambda self, size, *more: (sides.extend(size), resize(self, size, *more))[1]
        )
        assert pixels(tmp_path / "long.png", image_size=224)[0, 112, 112] > 100
    assert max(sides) <= 8 * 224


def test_pillows_limit_on_pixels_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RGB.save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", SIDE * SIDE // 4)
    assert "decompression bomb" in str(read(tmp_path / "bomb.png"))


def test_what_is_no_file_is_skipped_and_odd_names_are_kept(tmp_path: Path) -> None:
    """A FIFO would be waited for, a device never ends; a name need not be UTF-8, a link may lead nowhere."""
    name = os.fsdecode(b"caf\xe9.png")
    RGB.save(tmp_path / "a.png")
    (tmp_path / "a.png").rename(tmp_path / name)
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zero.png").symlink_to("/dev/zero")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "nowhere.png").symlink_to(tmp_path / "absent.png")
    data = load(f"folder:{tmp_path}")
    assert [os.path.basename(path) for path in data.paths] == [name, "nowhere.png"]
    assert (len(data.digest), data[1]) == (12, "No such file or directory")


def test_classes_with_odd_names_can_be_stored(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"tea"):
        os.mkdir(os.path.join(os.fsencode(tmp_path), name))
        RGB.save(tmp_path / os.fsdecode(name) / "a.png")
    data = load(f"folder:{tmp_path}")
    assert data.class_names == ("caf\\xe9", "tea")
    assert isinstance(data[0], torch.Tensor)
