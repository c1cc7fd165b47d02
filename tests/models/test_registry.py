"""Networks by name, and a user's own encoder by `python:module:function`."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from byov import models
from byov.models import registry
from byov.models.registry import OWN, encoder, resolve

LIBRARIES = [
    *("timm:convnext_atto", "timm:vit_tiny_patch16_224", "timm:mobilenetv3_small_100"),
    *("timm:deit_tiny_distilled_patch16_224", "torchvision:mobilenet_v3_small", "torchvision:densenet121"),
    *("torchvision:vit_b_16", "shufflenet_v2_x0_5"),
]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", [*sorted(name for name in OWN if not name.endswith(("/2", "/8"))), *LIBRARIES])
def test_networks_take_classes_channels_and_size(name: str, channels: int) -> None:
    """Every entry builds, with any number of classes and channels, and without its last layer."""
    with torch.device("meta"):
        x = torch.randn(2, channels, 64, 64)
        assert models.create(name, 7, channels, image_size=64).eval()(x).shape == (2, 7)
        encoder, width = models.encoder(name, channels, image_size=64)
        assert encoder.eval()(x).shape == (2, width)


def test_pyramidnets_of_any_depth_and_width() -> None:
    for name, same in {"pyramidnet20_a48": (20, 48), "pyramidnet29_a30_bottleneck": (29, 30, True)}.items():
        shapes = [p.shape for p in models.create(name, 7).parameters()]
        assert shapes == [p.shape for p in models.pyramidnet(*same, classes=7).parameters()]
        encoder, width = models.encoder(name)
        assert encoder.eval()(torch.randn(1, 3, 32, 32)).shape == (1, width)


def test_an_encoder_is_the_network_without_its_head() -> None:
    net = models.create("cifar_resnet18", 3).eval()
    encoder, width = models.encoder("cifar_resnet18")
    assert width == 512
    missing, unexpected = encoder.load_state_dict(net.state_dict(), strict=False)
    assert not missing
    assert set(unexpected) == {"fc.weight", "fc.bias"}
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(net.fc(encoder.eval()(x)), net(x))


def test_reading_the_width_draws_nothing() -> None:
    torch.manual_seed(0)
    encoder, _ = models.encoder("vit-nano/4")
    torch.manual_seed(0)
    net = models.create("vit-nano/4", 0)
    assert all(torch.equal(a, b) for a, b in zip(encoder.parameters(), net.parameters(), strict=True))


@pytest.mark.parametrize("name", ["timm:vit_tiny_patch16_224", "timm:deit_tiny_distilled_patch16_224", "vit-nano/4"])
def test_a_transformer_s_encoder_starts_as_byov_says(name: str) -> None:
    """trunc_normal(0.02) everywhere, the patch embedding too (appendix C); a tenth of the width would not be seen."""
    torch.manual_seed(0)
    net, _ = encoder(name, image_size=32)
    weights = {n: p.detach() for n, p in net.named_parameters() if "norm" not in n and not n.endswith("bias")}
    assert {"patch_embed.proj.weight", "pos_embed", "cls_token"} <= weights.keys()
    for key, weight in weights.items():  # six standard errors of a standard deviation
        assert float(weight.std()) == pytest.approx(0.02, rel=6 / (2 * weight.numel()) ** 0.5), key
        assert float(weight.mean()) == pytest.approx(0.0, abs=6 * 0.02 / weight.numel() ** 0.5), key
        if weight.numel() > 10_000:  # a normal's tails, which a uniform distribution of that width lacks
            assert float(weight.abs().max()) > 0.06, key
    assert all(not p.any() for n, p in net.named_parameters() if n.endswith("bias"))


def test_pretrained_weights_and_classifiers_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    own = models.create("timm:vit_tiny_patch16_224", 0, image_size=32)
    monkeypatch.setattr(registry, "create", lambda *words: copy.deepcopy(own))
    net, _ = encoder("timm:vit_tiny_patch16_224", image_size=32, pretrained=True)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), own.parameters(), strict=True))
    assert own.patch_embed.proj.bias.any()  # as timm starts it


def test_our_names_come_first() -> None:
    assert type(models.create("resnet18", 10)).__module__.startswith("torchvision")
    assert type(models.create("timm:resnet18", 10)).__module__.startswith("timm")
    assert isinstance(models.create("cifar_resnet18", 10).maxpool, nn.Identity)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("cifar_resnet_18", {}, "no network called .* try .*cifar_resnet18"),
        ("vit_tiny_patch16_225", {}, "vit_tiny_patch16_224"),
        ("xyzzy:resnet18", {}, "prefix"),
        ("torchvision:convnext_atto", {}, "no network called"),
        ("", {}, "no network called"),
        ("pyramidnet21_a48", {}, "depth is 6n"),
        ("pyramidnet20", {}, "A PyramidNet's name is pyramidnetDEPTH_aALPHA"),
        ("resnet18", {"classes": -1}, "are not valid sizes"),
        ("cifar_resnet18", {"pretrained": True}, "no pretrained weights"),
        ("torchvision:squeezenet1_0", {}, "linear layer"),
    ],
)
def test_bad_names_and_shapes(name: str, options: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        models.create(name, **{"classes": 10} | options)


SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, channels=1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.body[2].eval()
    def forward(self, x):
        return self.body(x)

class Inner:
    colour = staticmethod(lambda: Net(3))

class Two(nn.Module):
    def forward(self, x):
        return x.flatten(1), x

class Lost(nn.Module):
    def forward(self, x):
        raise RuntimeError("first line\\nsecond line")

def broken():
    raise ZeroDivisionError("mine")

maps = lambda: nn.Conv2d(1, 3, 3)
nothing = lambda: None
number = 3
"""


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working directory, under a name of its own for each test."""
    name = f"own_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return name


def test_a_function_beside_the_working_directory(beside: str) -> None:
    net, width = models.encoder(f"python:{beside}:Net", 1, 8)
    assert width == 3
    assert net(torch.rand(4, 1, 8, 8)).shape == (4, 3)
    net, width = models.encoder(f"python:{beside}:Inner.colour", 3, 8)
    assert (width, next(net.parameters()).shape[1]) == (3, 3)
    assert resolve("torch.nn:functional.relu") is nn.functional.relu  # an installed module does as well


def test_asking_for_the_width_changes_nothing(beside: str) -> None:
    torch.manual_seed(5)
    net, _ = models.encoder(f"python:{beside}:Net", 1, 8)
    after = torch.rand(3)
    assert [module.training for module in net.body] == [True, True, False, True, True]
    assert int(net.body[1].num_batches_tracked) == 0
    assert torch.count_nonzero(net.body[1].running_mean) == 0
    torch.manual_seed(5)
    resolve(f"{beside}:Net")()
    assert torch.equal(torch.rand(3), after)


@pytest.mark.parametrize("name", ["", "module", "module:", ":function", ":"])
def test_an_entry_point_has_a_module_and_an_attribute(name: str) -> None:
    with pytest.raises(ValueError, match="has the form 'module:attribute', not"):
        resolve(name)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("missing", "has no 'missing'"),
        ("Inner.missing", r"has no 'Inner\.missing'"),
        ("number", "is not a function that returns a network, but of type int"),
        ("nothing", r"returns NoneType, not a torch\.nn\.Module"),
        ("maps", r"returns features \(N, width\)"),
        ("Two", r"returns features \(N, width\)"),
        ("Inner.colour", "does not take images of 1×8×8: .*channels"),
        ("Lost", r"does not take images of 1×8×8: first line\.$"),
    ],
)
def test_bad_entry_points_are_told_in_a_sentence(beside: str, function: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        models.encoder(f"python:{beside}:{function}", 1, 8)


def test_a_missing_module_is_named_and_a_users_own_error_is_not_hidden(beside: str) -> None:
    with pytest.raises(ValueError, match="module 'no_such_module_here' of the entry point cannot be imported"):
        models.encoder("python:no_such_module_here:net", 1, 8)
    with pytest.raises(ZeroDivisionError, match="mine"):
        models.encoder(f"python:{beside}:broken", 1, 8)


def test_an_unknown_tag_of_timm_is_named() -> None:
    with pytest.raises(ValueError, match="timm has no network 'resnet18"):
        models.create("timm:resnet18.no_such_tag", 10)


def test_images_that_a_network_cannot_take_are_told_before_training() -> None:
    with pytest.raises(ValueError, match=r"timm:vit_tiny_patch16_224 does not take images of 3×8×8: "):
        encoder("timm:vit_tiny_patch16_224", 3, 8)
    net, width = encoder("resnet18", 3, 8)
    assert net.training
    assert width == 512
    assert int(net.get_buffer("bn1.num_batches_tracked")) == 0
