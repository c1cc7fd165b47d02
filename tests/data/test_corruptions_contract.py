"""What every shift of the data promises, whichever it is: corruptions and augmentations side by side."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_sample_image
from torch import Tensor

from byov.data.augmentations import AUGMENTATIONS, augment
from byov.data.corruptions import CORRUPTIONS, corrupt
from byov.data.shift import Shift, shift

SHIFTS = [pytest.param(f, id=f"corruption-{name}") for name, f in CORRUPTIONS.items()]
SHIFTS += [pytest.param(f, id=f"augmentation-{name}") for name, f in AUGMENTATIONS.items()]
DETERMINISTIC = ["defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photographs(size: int, count: int = 8) -> Tensor:
    """Crops of two photographs, (count, 3, size, size); small ones are shrunk from larger crops."""
    pictures = [torch.from_numpy(load_sample_image(n).copy()) / 255 for n in ("china.jpg", "flower.jpg")]
    starts = [(n % 2, 3 * (n % 64), 6 * (n % 64)) for n in range(count)]
    crops = torch.stack([pictures[n][top : top + 224, left : left + 224] for n, top, left in starts]).permute(
        0, 3, 1, 2
    )
    return crops if size == 224 else torch.nn.functional.adaptive_avg_pool2d(crops, size)


def test_the_fifteen_corruptions_stand_in_imagenet_cs_order() -> None:
    assert list(CORRUPTIONS) == [
        *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
        *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    ]
    assert len(AUGMENTATIONS) == 15


@pytest.mark.parametrize("f", SHIFTS)
def test_pure_function_of_images_severity_and_generator(f: Shift) -> None:
    images = photographs(32)
    before = images.clone()
    state = torch.get_rng_state()
    first, second = f(images, 3, seeded()), f(images, 3, seeded())
    assert torch.equal(first, second)
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)  # all chance comes from the generator that was given
    assert first.shape == images.shape
    assert first.dtype == images.dtype
    assert first.min() >= 0
    assert first.max() <= 1
    assert first.data_ptr() != images.data_ptr()
    assert not torch.equal(first, images)


@pytest.mark.parametrize("f", SHIFTS)
def test_without_a_generator_torchs_own_one_is_used(f: Shift) -> None:
    images = photographs(32, count=2)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = f(images, 2)
        torch.manual_seed(1)
        assert torch.equal(first, f(images, 2))


@pytest.mark.parametrize("f", SHIFTS)
def test_images_of_a_batch_have_draws_of_their_own(f: Shift) -> None:
    same = photographs(32, count=1).repeat(6, 1, 1, 1)
    results = f(same, 4, seeded())
    differ = bool(((results - results[:1]).abs() > 1e-4).any())
    random = f.name not in {*DETERMINISTIC, "blur", "saturation", "solarize", "posterize", "jpeg"}
    if f is AUGMENTATIONS["brightness"]:
        random = True
    assert differ == random


@pytest.mark.parametrize("name", DETERMINISTIC)
@pytest.mark.parametrize("size", [32, 96])
def test_an_image_does_not_depend_on_the_others_in_its_batch(name: str, size: int) -> None:
    images = photographs(224)[..., :size, :size]
    together = corrupt(images, name, 4)
    alone = torch.cat([corrupt(image[None], name, 4) for image in images])
    difference = (together - alone).abs()
    if name == "jpeg_compression":  # a product in another order can move a coefficient across a tie
        assert difference.mean() < 0.2 / 255
    else:
        assert difference.max() < 1e-5


# Steps (k: from severity k to k + 1) at which the published parameters themselves make no larger change: the elastic
# transform's affine map shrinks with the severity (in ImageNet-C from 49 px to 5 px); glass blur trades reach, blur and
# iterations for one another; CIFAR-10-C's motion blur only adds taps of weight 0; snow and frost darken too.
FLAT_STEPS = {
    ("elastic_transform", 32): {1, 2, 3, 4},
    ("elastic_transform", 224): {1, 2, 3, 4},
    ("glass_blur", 32): {1, 2, 3, 4},
    ("glass_blur", 224): {1, 3},
    ("motion_blur", 32): {3},
    ("snow", 224): {2},
    ("frost", 32): {3, 4},
    ("frost", 224): {3},
}


@pytest.mark.parametrize("f", SHIFTS)
@pytest.mark.parametrize("size", [32, 224])
def test_the_change_grows_with_the_severity(f: Shift, size: int) -> None:
    images = photographs(size, count=96 if size == 32 else 6)
    changes = [float((f(images, severity, seeded(9)) - images).abs().mean()) for severity in (1, 2, 3, 4, 5)]
    flat = FLAT_STEPS.get((f.name, size), set()) if CORRUPTIONS.get(f.name) is f else set()
    assert min(changes) > 0.001
    assert all(changes[step] > changes[step - 1] for step in {1, 2, 3, 4} - flat), changes
    if len(flat) < 4:
        assert changes[4] > 1.3 * changes[0]


@pytest.mark.parametrize("f", SHIFTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_come_back_as_they_went_in(f: Shift, dtype: torch.dtype) -> None:
    result = f(photographs(32, count=2).to(dtype), 2, seeded())
    assert result.dtype == dtype
    assert bool(result.isfinite().all())


@pytest.mark.parametrize("f", SHIFTS)
@settings(max_examples=12, deadline=None)
@given(
    height=st.integers(1, 80),
    width=st.integers(1, 80),
    channels=st.sampled_from([1, 3]),
    count=st.integers(0, 3),
    severity=st.integers(1, 5),
    fill=st.sampled_from([None, 0.0, 1.0]),
)
def test_any_size_and_flat_images(
    f: Shift, height: int, width: int, channels: int, count: int, severity: int, fill: float | None
) -> None:
    channels = 3 if f.rgb_only else channels
    images = torch.rand(count, channels, height, width, generator=seeded())
    if fill is not None:
        images.fill_(fill)
    result = f(images, severity, seeded())
    assert result.shape == images.shape
    assert bool(((result >= 0) & (result <= 1)).all())


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name != "frost"])
def test_grey_images_change_as_grey_rgb_images_do(name: str) -> None:
    grey = photographs(32, count=64).mean(1, keepdim=True)
    one = corrupt(grey, name, 4, seeded()) - grey
    three = corrupt(grey.repeat(1, 3, 1, 1), name, 4, seeded()) - grey
    assert abs(float(one.mean() - three.mean())) < 0.01
    assert abs(float(one.std() / three.std()) - 1) < 0.1


def test_frost_on_grey_images_is_the_lumas_frost() -> None:
    grey = photographs(32, count=64).mean(1, keepdim=True)
    one = corrupt(grey, "frost", 2, seeded()) - grey
    three = corrupt(grey.repeat(1, 3, 1, 1), "frost", 2, seeded()) - grey
    assert abs(float(one.mean() - three.mean())) < 0.02


def test_the_table_follows_the_shorter_side_and_can_be_told() -> None:
    noise = CORRUPTIONS["gaussian_noise"]
    assert noise.strength(5, 64) == (0.10,)
    assert noise.strength(5, 65) == (0.38,)
    flat = torch.full((4, 3, 64, 200), 0.5)
    assert abs(float(corrupt(flat, "gaussian_noise", 1, seeded()).std()) - 0.04) < 0.002
    assert abs(float(corrupt(flat, "gaussian_noise", 1, seeded(), table="imagenet").std()) - 0.08) < 0.002


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: corrupt(x, "gausian_noise"), ValueError, "nearest are gaussian_noise"),
        (lambda x: augment(x, "rotate", 1), ValueError, "no augmentation called 'rotate'; the nearest are rotation"),
        (lambda x: corrupt(x, "fog", 0), ValueError, "from 1 to 5, not 0"),
        (lambda x: corrupt(x, "fog", 6), ValueError, "from 1 to 5, not 6"),
        (lambda x: corrupt(x, "fog", 2.0), TypeError, "whole number"),
        (lambda x: corrupt(x, "fog", True), TypeError, "whole number"),
        (lambda x: corrupt(x, "fog", 1, table="tiny"), ValueError, "no table 'tiny'"),
        (lambda x: corrupt(x[0], "fog"), ValueError, r"shape \(N, 1 or 3, H, W\), not \(3, 8, 8\)"),
        (lambda x: corrupt(x[:, :2], "fog"), ValueError, "shape"),
        (lambda x: corrupt(x[..., :0], "fog"), ValueError, "shape"),
        (lambda x: corrupt((x * 255).byte(), "fog"), TypeError, "divide 8-bit images by 255"),
        (lambda x: corrupt(x.numpy(), "fog"), TypeError, "torch tensor, not ndarray"),
        (lambda x: corrupt(x * 255, "fog"), ValueError, r"lie in \[0, 1\]"),
        (lambda x: corrupt(x - 0.5, "fog"), ValueError, r"lie in \[0, 1\]"),
        (lambda x: corrupt(x * float("nan"), "fog"), ValueError, r"lie in \[0, 1\]"),
        (lambda x: augment(x[:, :1], "hue", 1), ValueError, "three colour channels"),
        (lambda x: shift(byov=(1, 2, 3)), ValueError, "five strengths"),
    ],
)
def test_bad_input_gets_one_sentence(call: Callable[[Tensor], Tensor], error: type[Exception], says: str) -> None:
    images = torch.linspace(0, 1, 2 * 3 * 64).view(2, 3, 8, 8)
    with pytest.raises(error, match=says) as raised:
        call(images)
    assert "\n" not in str(raised.value)
    assert str(raised.value).endswith(".")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("f", SHIFTS)
def test_a_gpu_gives_the_cpus_result_for_a_cpu_generator(f: Shift) -> None:
    images = photographs(32)
    expected = f(images, 3, seeded())
    found = f(images.cuda(), 3, seeded())
    assert found.is_cuda
    assert (found.cpu() - expected).abs().mean() < 1e-3  # where values are rounded, one may fall on the other side
    assert f(images.cuda(), 3, torch.Generator("cuda").manual_seed(0)).is_cuda
