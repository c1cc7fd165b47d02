"""The papers' networks: parameter counts to the unit, structure, initialisation."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import byov
from byov.models import cifar_resnet18, convnet, pyramidnet, regression_mlp, resnet, table3_mlp, vit
from byov.models.vit import Patches


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    ("build", "plain", "patched", "ensemble"),
    [
        (table3_mlp, 1_009_900, 1_129_100, 5_049_500),
        (lambda: resnet(18), 11_689_512, 13_779_912, 58_447_560),
        (pyramidnet, 28_511_307, 28_825_299, 142_556_535),
    ],
)
def test_table_3(build: Callable[[], nn.Module], plain: int, patched: int, ensemble: int) -> None:
    """Of the patching paper; and what the other families learn."""
    with torch.device("meta"):
        net = build()
    assert count(net) == plain
    for kind in (byov.EMP, byov.ECMP):
        model = byov.bayesianize(net, {byov.norm_layers: kind(5), byov.output_layer: kind(5)})
        assert count(model) == patched
    for family, learned in (
        (byov.Ensemble(5), ensemble),
        (byov.Gaussian(), 2 * plain),
        (byov.Dropout(0.1), plain),
        (byov.DropConnect(0.1), plain),
    ):
        assert count(byov.bayesianize(net, family)) == learned


def test_table_3_mlp_has_a_hundred_layers_of_a_hundred_units() -> None:
    net = table3_mlp()
    assert [m.out_features for m in net if isinstance(m, nn.Linear)] == [100] * 100
    assert net(torch.randn(4, 1)).shape == (4, 100)


def test_pyramid_widths_grow_evenly() -> None:
    net = pyramidnet(20, 48, classes=7, channels=1)
    widths = [block.residual[1].out_channels for stage in net.stages for block in stage]
    assert widths == [round(16 + k * 48 / 9) for k in range(1, 10)]
    assert net(torch.randn(2, 1, 32, 32)).shape == (2, 7)


def test_pyramid_shortcut_pools_and_pads_with_zeros() -> None:
    """With the residual branch silenced a block is its shortcut, written out here."""
    block = pyramidnet(8, 30).stages[1][0].eval()
    nn.init.zeros_(block.residual[-1].weight)
    x = torch.randn(2, 26, 8, 8)
    expected = torch.zeros(2, 36, 4, 4)
    expected[:, :26] = x.reshape(2, 26, 4, 2, 4, 2).mean((3, 5))
    torch.testing.assert_close(block(x), expected)


def test_pyramid_blocks_and_odd_sizes() -> None:
    kinds = [type(m).__name__ for m in pyramidnet(8, 30).stages[0][0].residual]
    assert kinds == ["BatchNorm2d", "Conv2d", "BatchNorm2d", "ReLU", "Conv2d", "BatchNorm2d"]
    net = pyramidnet(11, 12, bottleneck=True, classes=3).eval()
    assert net.fc.in_features == 4 * 28
    assert net(torch.randn(1, 3, 29, 29)).shape == (1, 3)


def test_pyramid_convolutions_start_at_hes_scale() -> None:
    conv = pyramidnet(14, 100).stages[2][1].residual[4]
    assert conv.weight.std().item() == pytest.approx((2 / (9 * conv.out_channels)) ** 0.5, rel=0.02)


def test_cifar_stem_keeps_the_resolution() -> None:
    net = cifar_resnet18(10)
    assert count(net) == 11_173_962  # torchvision's blocks, a 3×3 stem of 1,728 weights, 5,130 in the output
    seen: list[Tensor] = []
    net.layer1.register_forward_hook(lambda module, inputs, output: seen.append(output))
    assert net.eval()(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert seen[0].shape == (2, 64, 32, 32)


def test_regression_mlp_is_d7s() -> None:
    net = regression_mlp(13)
    assert [type(m).__name__ for m in net] == ["BatchNorm1d", "Linear", "ReLU", "BatchNorm1d", "Linear"]
    assert all(m.weight.unique().item() == pytest.approx(0.2) for m in net if isinstance(m, nn.BatchNorm1d))
    assert count(net) == 2 * 13 + (13 * 50 + 50) + 2 * 50 + 51
    assert net(torch.randn(6, 13)).shape == (6, 1)
    plain = regression_mlp(4, hidden=100, targets=2, norm=False)
    assert [type(m).__name__ for m in plain] == ["Linear", "ReLU", "Linear"]
    assert plain[2].out_features == 2
    dropped = regression_mlp(4, norm=False, dropout=0.005)
    assert [m.p for m in dropped if isinstance(m, nn.Dropout)] == [0.005, 0.005]


def test_vit_sizes() -> None:
    depth_6, ti = vit("mini", 0), vit("ti", 0)
    assert (len(depth_6.blocks), len(ti.blocks), ti.embed_dim, ti.blocks[0].attn.num_heads) == (6, 12, 192, 3)
    assert ti.patch_embed.num_patches == 64
    assert vit("nano", 0, channels=1, image_size=8)(torch.randn(2, 1, 8, 8)).shape == (2, 64)
    averaged = vit("nano", pool="avg")
    assert averaged.cls_token is None
    assert averaged(torch.randn(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(("channels", "patch", "height", "width"), [(3, 4, 32, 32), (1, 2, 7, 9), (2, 16, 16, 48)])
def test_patches_are_a_convolution_whose_stride_is_its_kernel(
    channels: int, patch: int, height: int, width: int
) -> None:
    layer = Patches(channels, 5, patch).double()
    x = torch.randn(3, channels, height, width, dtype=torch.float64, requires_grad=True)
    plain = nn.functional.conv2d(x, layer.weight, layer.bias, stride=patch)
    assert layer(x).shape == plain.shape
    torch.testing.assert_close(layer(x), plain)
    towards = torch.randn_like(plain)
    inputs = (x, layer.weight, layer.bias)
    gradients = [torch.autograd.grad((out * towards).sum(), inputs) for out in (layer(x), plain)]
    torch.testing.assert_close(*gradients)
    assert isinstance(vit("nano").patch_embed.proj, Patches)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: table3_mlp(layers=1), "at least 2"),
        (lambda: pyramidnet(111), r"6n \+ 2"),
        (lambda: pyramidnet(2), r"6n \+ 2"),
        (lambda: pyramidnet(100, 10, bottleneck=True), r"9n \+ 2"),
        (lambda: resnet(19), "depths"),
        (lambda: resnet(18, stem="other"), "stem"),
        (lambda: convnet(0), "at least one channel"),
        (lambda: regression_mlp(4, dropout=1.0), "dropout"),
        (lambda: regression_mlp(0), "at least 1"),
        (lambda: vit("huge"), "size is one of"),
        (lambda: vit("ti", image_size=30), "does not divide"),
        (lambda: Patches(1, 5, 4)(torch.zeros(1, 1, 8, 3)), "does not fit into images of"),
    ],
)
def test_bad_shapes_get_one_sentence(build: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build()
