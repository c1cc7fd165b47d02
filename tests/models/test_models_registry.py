"""Networks by name."""

import pytest
import torch
from torch import nn

from byov import models
from byov.models.registry import OWN


@pytest.mark.parametrize("name", sorted(name for name in OWN if not name.endswith(("/2", "/8"))))
def test_our_own_take_classes_channels_and_size(name: str) -> None:
    """Entries build, with any number of classes and channels, and without its last layer."""
    with torch.device("meta"):
        x = torch.randn(2, 1, 64, 64)
        net = models.create(name, 7, channels=1, image_size=64).eval()
        assert net(x).shape == (2, 7)
        encoder, width = models.encoder(name, channels=1, image_size=64)
        assert encoder.eval()(x).shape == (2, width)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("timm:convnext_atto", 64),
        ("timm:vit_tiny_patch16_224", 64),
        ("timm:mobilenetv3_small_100", 64),
        ("timm:deit_tiny_distilled_patch16_224", 64),
        ("torchvision:mobilenet_v3_small", 64),
        ("torchvision:densenet121", 64),
        ("torchvision:vit_b_16", 64),
        ("shufflenet_v2_x0_5", 64),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_libraries_networks(name: str, size: int, channels: int) -> None:
    with torch.device("meta"):
        x = torch.randn(2, channels, size, size)
        assert models.create(name, 7, channels, image_size=size).eval()(x).shape == (2, 7)
        encoder, width = models.encoder(name, channels, image_size=size)
        assert encoder.eval()(x).shape == (2, width)


def test_pyramidnets_of_any_depth_and_width() -> None:
    for name, same in {"pyramidnet20_a48": (20, 48), "pyramidnet29_a30_bottleneck": (29, 30, True)}.items():
        shapes = [p.shape for p in models.create(name, 7).parameters()]
        assert shapes == [p.shape for p in models.pyramidnet(*same, classes=7).parameters()]
        encoder, width = models.encoder(name)
        assert encoder.eval()(torch.randn(1, 3, 32, 32)).shape == (1, width)
    with pytest.raises(ValueError, match="depth is 6n"):
        models.create("pyramidnet21_a48", 7)
    with pytest.raises(ValueError, match="A PyramidNet's name is pyramidnetDEPTH_aALPHA"):
        models.create("pyramidnet20", 7)


def test_an_encoder_is_the_network_without_its_head() -> None:
    torch.manual_seed(0)
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
    for a, b in zip(encoder.parameters(), net.parameters(), strict=True):
        assert torch.equal(a, b)


def test_our_names_come_first() -> None:
    assert type(models.create("resnet18", 10)).__module__.startswith("torchvision")
    assert type(models.create("timm:resnet18", 10)).__module__.startswith("timm")
    assert isinstance(models.create("cifar_resnet18", 10).maxpool, nn.Identity)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("cifar_resnet_18", "nearest names are .*cifar_resnet18"),
        ("vit_tiny_patch16_225", "vit_tiny_patch16_224"),
        ("xyzzy:resnet18", "prefix"),
        ("torchvision:convnext_atto", "no network called"),
        ("", "no network called"),
    ],
)
def test_unknown_names(name: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        models.create(name, 10)


def test_bad_shapes_and_missing_weights() -> None:
    with pytest.raises(ValueError, match="not a network's shape"):
        models.create("resnet18", -1)
    with pytest.raises(ValueError, match="no pretrained weights"):
        models.create("cifar_resnet18", 10, pretrained=True)
    with pytest.raises(ValueError, match="linear layer"):
        models.create("torchvision:squeezenet1_0", 10)
