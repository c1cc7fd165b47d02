"""The contract of every shift of the data, corruptions and augmentations side by side."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_networks import seeded
from torch import Tensor

from byov.data.augmentations import AUGMENTATIONS, augment
from byov.data.corruptions import CORRUPTIONS, corrupt
from byov.data.shift import Shift, shift

from .originals import DETERMINISTIC, photographs, tensor

SHIFTS = [pytest.param(f, id=f"corruption-{name}") for name, f in CORRUPTIONS.items()]
SHIFTS += [pytest.param(f, id=f"augmentation-{name}") for name, f in AUGMENTATIONS.items()]


def images_of(size: int, count: int = 8) -> Tensor:
    return tensor(photographs(size, count))


def test_the_fifteen_corruptions_stand_in_imagenet_cs_order() -> None:
    assert list(CORRUPTIONS) == [
        *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
        *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    ]
    assert len(AUGMENTATIONS) == 15


@pytest.mark.parametrize("f", SHIFTS)
def test_pure_function_of_images_severity_and_generator(f: Shift) -> None:
    images = images_of(32)
    before, state = images.clone(), torch.get_rng_state()
    first, second = f(images, 3, seeded()), f(images, 3, seeded())
    assert torch.equal(first, second)
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), state)  # all chance comes from the generator that was given
    assert first.data_ptr() != images.data_ptr()
    assert not torch.equal(first, images)
    torch.manual_seed(1)  # and without one, from torch's own
    first = f(images, 2)
    torch.manual_seed(1)
    assert torch.equal(first, f(images, 2))


@pytest.mark.parametrize("f", SHIFTS)
def test_images_of_a_batch_have_draws_of_their_own(f: Shift) -> None:
    same = images_of(32, count=1).repeat(6, 1, 1, 1)
    results = f(same, 4, seeded())
    differ = bool(((results - results[:1]).abs() > 1e-4).any())
    fixed = {*DETERMINISTIC, "blur", "saturation", "solarize", "posterize", "jpeg"}
    assert differ == (f.name not in fixed or f is AUGMENTATIONS["brightness"])


@pytest.mark.parametrize("f", SHIFTS)
@settings(max_examples=15, deadline=None)
@given(
    height=st.integers(1, 80),
    width=st.integers(1, 80),
    channels=st.sampled_from([1, 3]),
    count=st.integers(0, 3),
    severity=st.integers(1, 5),
    fill=st.sampled_from([None, 0.0, 1.0]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
)
def test_any_size_dtype_and_flat_images(
    f: Shift, height: int, width: int, channels: int, count: int, severity: int, fill: float | None, dtype: torch.dtype
) -> None:
    images = torch.rand(count, 3 if f.rgb_only else channels, height, width, generator=seeded()).to(dtype)
    if fill is not None:
        images.fill_(fill)
    result = f(images, severity, seeded())
    assert result.shape == images.shape
    assert result.dtype == dtype
    assert bool(((result >= 0) & (result <= 1)).all())


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_grey_images_change_as_grey_rgb_images_do(name: str) -> None:
    """Frost has colours, of which a grey image gets the luma: the mean change is the same, the spread is not."""
    grey = images_of(32, count=64).mean(1, keepdim=True)
    one = corrupt(grey, name, 4, seeded()) - grey
    three = corrupt(grey.repeat(1, 3, 1, 1), name, 4, seeded()) - grey
    assert abs(float(one.mean() - three.mean())) < (0.02 if name == "frost" else 0.01)
    assert name == "frost" or abs(float(one.std() / three.std()) - 1) < 0.1


def test_the_table_follows_the_shorter_side_and_can_be_told() -> None:
    noise = CORRUPTIONS["gaussian_noise"]
    assert noise.strength(5, 64) == (0.10,)
    assert noise.strength(5, 65) == (0.38,)
    assert noise.strength(5, 64, "imagenet") == (0.38,)


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
    images = images_of(32)
    expected = f(images, 3, seeded())
    found = f(images.cuda(), 3, seeded())
    assert found.is_cuda
    assert (found.cpu() - expected).abs().mean() < 1e-3  # where values are rounded, one may fall on the other side
    assert f(images.cuda(), 3, torch.Generator("cuda").manual_seed(0)).is_cuda
