"""Picture files against torchvision: its ImageFolder where eight bits hold a picture, else its `to_dtype`."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets.folder import pil_loader
from torchvision.transforms.v2.functional import to_dtype

from byov.data import FolderSet, load

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
        ("bits.png", lambda: RGB.convert("1"), dict),
        ("palette.png", lambda: RGB.convert("P"), dict),
        ("clear.png", lambda: RGB.convert("P"), lambda: {"transparency": 3}),
        ("alpha.png", lambda: transparent("RGBA"), dict),
        ("grey_alpha.png", lambda: transparent("LA"), dict),
        ("alpha.webp", lambda: transparent("RGBA"), lambda: {"lossless": True}),
        ("print.jpg", lambda: RGB.convert("CMYK"), dict),
        ("print.tif", lambda: RGB.convert("CMYK"), dict),
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
    assert isinstance(data, FolderSet)
    assert [os.path.basename(path) for path in data.paths] == [name, "nowhere.png"]
    assert (len(data.digest), data[1]) == (12, "No such file or directory")


def test_classes_with_odd_names_can_be_stored(tmp_path: Path) -> None:
    for name in (b"caf\xe9", b"tea"):
        os.mkdir(os.path.join(os.fsencode(tmp_path), name))
        RGB.save(tmp_path / os.fsdecode(name) / "a.png")
    data = load(f"folder:{tmp_path}")
    assert data.class_names == ("caf\\xe9", "tea")
    assert isinstance(data[0], torch.Tensor)
