"""BYOL's views: every probability and range counted over many draws, whole pipelines against torchvision."""

import math
from itertools import permutations
from math import inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as reference

from byov.ssl.views import NEVER, UNIFORMS, Parameters, View, Views, apply, kernel_size, parameters

DRAWS = 40_000
FIRST, SECOND = Views().first, Views().second


def drawn(view: View, height: int = 64, width: int = 64, count: int = DRAWS) -> Parameters:
    uniforms = torch.rand(count, UNIFORMS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return parameters(view, uniforms, height, width)


def assert_share(hits: torch.Tensor, probability: float) -> None:
    """The share of hits is within five standard deviations of a binomial; exact at 0 and 1."""
    tolerance = 5 * math.sqrt(probability * (1 - probability) / len(hits))
    assert abs(hits.double().mean().item() - probability) <= tolerance


def assert_uniform(values: torch.Tensor, low: float, high: float) -> None:
    """Inside the range, and each tenth of it holds a tenth of the values (binomial, five standard deviations)."""
    assert values.min() >= low - 1e-9
    assert values.max() <= high + 1e-9
    shares = torch.histc(values.float(), 10, low, high) / len(values)
    assert (shares - 0.1).abs().max() < 5 * math.sqrt(0.09 / len(values))


@pytest.mark.parametrize(("view", "blur", "solarize"), [(FIRST, 1.0, 0.0), (SECOND, 0.1, 0.2)])
def test_probabilities_are_byols(view: View, blur: float, solarize: float) -> None:
    p = drawn(view)
    assert_share(p.flip, 0.5)
    assert_share(p.brightness != 1, 0.8)
    assert_share(p.grayscale, 0.2)
    assert_share(p.sigma > 0, blur)
    assert_share(p.threshold != NEVER, solarize)
    jittered = p.hue != 0
    for factor in (p.brightness, p.contrast, p.saturation):
        assert torch.equal(factor != 1, jittered)  # all four or none


def test_strengths_are_byols() -> None:
    p = drawn(SECOND)
    jittered = p.hue != 0
    assert_uniform(p.brightness[jittered], 0.6, 1.4)
    assert_uniform(p.contrast[jittered], 0.6, 1.4)
    assert_uniform(p.saturation[jittered], 0.8, 1.2)
    assert_uniform(p.hue[jittered], -0.1, 0.1)
    assert_uniform(p.sigma[p.sigma > 0], 0.1, 2.0)
    assert p.threshold[p.threshold != NEVER].unique().tolist() == [0.5]


def test_all_orders_of_the_colour_operations_are_equally_likely() -> None:
    turn = drawn(FIRST).turn
    for order in permutations(range(4)):
        assert_share((turn == torch.tensor(order)).all(1), 1 / 24)


def test_the_random_choices_are_independent() -> None:
    """No two parameters of an image share a random number: all pairs are uncorrelated within five deviations.

    A strength that an image is spared counts as its middle, so that whether and how much are uncorrelated, too.
    """
    side = 4096
    p = drawn(View(area=(0.08, 0.5), jitter=0.6, grayscale=0.4, blur=0.5, solarize=0.3), side, side)
    blurred = p.sigma > 0
    columns = [
        p.top / (side - p.height + 1),
        p.left / (side - p.width + 1),
        p.height * p.width,
        (p.width / p.height).log(),
        p.flip,
        p.hue != 0,
        p.brightness,
        p.contrast,
        p.saturation,
        p.hue,
        p.grayscale,
        blurred,
        torch.where(blurred, p.sigma, 1.05),
        p.threshold != NEVER,
        *p.turn.unbind(1),
    ]
    correlation = torch.corrcoef(torch.stack([column.double() for column in columns])).fill_diagonal_(0)
    within_turn = correlation[-4:, -4:].clone()
    correlation[-4:, -4:] = 0
    assert correlation.abs().max() < 5 / math.sqrt(DRAWS)
    torch.testing.assert_close(within_turn, (torch.eye(4) - 1).double() / 3, rtol=0, atol=0.03)  # a permutation's


def test_crops_have_byols_areas_and_aspects() -> None:
    """On large images rounding does not show: log aspect and area are uniform, apart from crops that cannot fit."""
    side = 4096
    p = drawn(FIRST, side, side)
    area, aspect = p.height * p.width / side**2, p.width / p.height
    assert area.min() > 0.0799
    assert area.max() <= 1.0
    assert_uniform(aspect.log()[area < 0.7].clamp(math.log(3 / 4), math.log(4 / 3)), math.log(3 / 4), math.log(4 / 3))
    fits = area < 0.75  # every aspect fits below 3/4, so these areas are proposed and accepted uniformly
    assert_uniform(area[fits].clamp(min=0.08), 0.08, 0.75)
    room = (p.top / (side - p.height + 1))[p.height < side / 2]
    assert_uniform(room, 0.0, 1.0)
    assert_uniform((p.left / (side - p.width + 1))[p.width < side / 2], 0.0, 1.0)


@settings(max_examples=60, deadline=None)
@given(height=st.integers(1, 40), width=st.integers(1, 40), seed=st.integers(0, 2**16))
def test_crops_lie_inside_any_image(height: int, width: int, seed: int) -> None:
    uniforms = torch.rand(50, UNIFORMS, generator=torch.Generator().manual_seed(seed))
    p = parameters(View(), uniforms, height, width)
    for start, length, side in ((p.top, p.height, height), (p.left, p.width, width)):
        assert ((length >= 1) & (start >= 0) & (start + length <= side)).all()
    out = apply(torch.rand(50, 3, height, width), p, (12, 12))
    assert ((out >= 0) & (out <= 1)).all()


def test_a_crop_that_never_fits_is_the_centre() -> None:
    """A strip of 10 × 100 cannot hold its whole area in an aspect of 3/4 to 4/3: the fallback is 10 × 13, centred."""
    p = drawn(View(area=(1.0, 1.0)), 10, 100, 100)
    assert torch.stack([p.top, p.left, p.height, p.width]).unique(dim=1).flatten().tolist() == [0, 43, 10, 13]


@pytest.mark.parametrize("size", [32, 40])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_pipeline_is_torchvisions_chain(size: int, channels: int) -> None:
    """Crop, flip, jitter in the image's own order, grayscale, blur (40 px only), solarise: one image at a time."""
    g = torch.Generator().manual_seed(3)
    x = torch.rand(48, channels, 36, 33, generator=g)
    view = View(blur=0.5, solarize=0.3, grayscale=0.4)
    p = parameters(view, torch.rand(48, UNIFORMS, generator=g), 36, 33)
    ours = apply(x, p, (size, size))
    for i in range(48):
        row = Parameters(*(part[i] for part in p))
        box = (int(row.top), int(row.left), int(row.height), int(row.width))
        y = reference.resized_crop(x[i], *box, [size, size], InterpolationMode.BICUBIC, antialias=True).clamp(0, 1)
        y = reference.horizontal_flip(y) if row.flip else y
        for name in (("brightness", "contrast", "saturation", "hue")[k] for k in row.turn.argsort()):
            y = getattr(reference, f"adjust_{name}")(y, float(getattr(row, name)))
        if row.grayscale and channels == 3:
            y = reference.rgb_to_grayscale(y, 3)
        if size > 32 and row.sigma > 0:
            kernel = kernel_size(size)
            y = reference.gaussian_blur(y, [kernel, kernel], [float(row.sigma)] * 2)
        if row.threshold < 1:
            near = (y - 0.5).abs() < 2e-5  # rounding decides these pixels' side of the threshold
            y = torch.where(near, ours[i], reference.solarize(y, 0.5))
        torch.testing.assert_close(ours[i], y, rtol=0, atol=2e-5)


def test_kernel_sizes() -> None:
    assert [kernel_size(n) for n in (8, 32, 33, 64, 96, 128, 224)] == [0, 0, 3, 7, 9, 13, 23]


def test_two_views_of_bytes_or_floats_normalised() -> None:
    images = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    views, plain = Views(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)), Views()
    first, second = views(images, torch.Generator().manual_seed(1))
    again = views(images.float() / 255, torch.Generator().manual_seed(1))
    bare = plain(images, torch.Generator().manual_seed(1))
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (views.mean, views.std))
    for view, same, raw in zip((first, second), again, bare, strict=True):
        assert view.shape == images.shape
        assert view.dtype == torch.float32
        assert torch.equal(view, same)
        torch.testing.assert_close(view, (raw - mean) / std)
    assert not torch.equal(first, second)


def test_views_differ_per_image_and_by_seed() -> None:
    images = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)).expand(64, -1, -1, -1)
    first, second = Views()(images, torch.Generator().manual_seed(0))
    assert len(torch.cat([first, second]).flatten(1).unique(dim=0)) == 128
    other, _ = Views()(images, torch.Generator().manual_seed(1))
    assert not torch.equal(first, other)


def test_rendering_is_one_graph_that_can_change_the_size() -> None:
    views = Views(mean=(0.5,) * 3, std=(0.2,) * 3, size=36)
    images = torch.randint(0, 256, (4, 3, 40, 40), dtype=torch.uint8)
    uniforms = views.draw(4, torch.Generator().manual_seed(0))
    compiled = torch.compile(views.render, fullgraph=True, backend="eager")
    for ours, eager in zip(compiled(images, uniforms), views.render(images, uniforms), strict=True):
        assert ours.shape == (4, 3, 36, 36)
        torch.testing.assert_close(ours, eager)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("size", [32, 64])
def test_gpu_and_cpu_agree(size: int) -> None:
    views = Views(mean=(0.5,) * 3, std=(0.25,) * 3)
    images = torch.randint(0, 256, (64, 3, size, size), dtype=torch.uint8)
    cpu = views(images, torch.Generator().manual_seed(0))
    compiled = torch.compile(views.render, fullgraph=True)
    uniforms = views.draw(64, torch.Generator().manual_seed(0), "cuda")
    for a, b, c in zip(cpu, views.render(images.cuda(), uniforms), compiled(images.cuda(), uniforms), strict=True):
        # a pixel at the solarisation threshold may fall on either side: at most a few in ten thousand
        assert ((a - b.cpu()).abs() > 1e-4).float().mean() < 5e-4
        assert ((a - c.cpu()).abs() > 1e-4).float().mean() < 5e-4


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"flip": 1.5}, "View.flip is a number from 0 to 1, not 1.5"),
        ({"area": (0.5, 0.1)}, "area is a range"),
        ({"area": (0.0, 1.0)}, "area is a range"),
        ({"aspect": (-1.0, 1.0)}, r"View\.aspect\[0\] is a number above 0"),
        ({"aspect": (inf, inf)}, r"View\.aspect\[0\] is a number above 0 and at most 1,000, not inf"),
        ({"sigma": (0.0, 1.0)}, r"View\.sigma\[0\] is a number above 0"),
        ({"sigma": (2.0, 1.0)}, "sigma is a range"),
        ({"threshold": nan}, "View.threshold is a number, not nan"),
        ({"hue": 0.7}, "View.hue is a number from 0 to 0.5, not 0.7"),
        ({"contrast": -0.1}, "View.contrast is a number from 0 to 1"),
    ],
)
def test_bad_settings(bad: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        View(**bad)


@pytest.mark.parametrize(
    ("views", "images", "sentence"),
    [
        (Views(), torch.rand(3, 8, 8), "N, 1 or 3"),
        (Views(), torch.rand(3, 2, 8, 8), "N, 1 or 3"),
        (Views(mean=(0.5,)), torch.rand(3, 3, 8, 8), "mean has 1 numbers"),
        (Views(), torch.zeros(3, 3, 8, 8, dtype=torch.int64), "uint8 or floating"),
    ],
)
def test_bad_images(views: Views, images: torch.Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        views(images, torch.Generator())
