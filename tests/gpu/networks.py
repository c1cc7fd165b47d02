"""The networks, the families and the images that the cases share.

On a GPU a ViT's activations are 512 × 65 × 192 = 6.4 million elements in 33,280 rows: Inductor takes the kernel that
lost gradients (see byov.posterior.materialize) from 5 · 2²⁰ elements, 4,096 rows and twice as many rows as columns.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import timm
import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet

import byov
from byov.models import cifar_resnet18, vit
from byov.posterior import Family

from .registry import Setting

FAMILIES: dict[str, Family | None] = {
    "none": None,  # the control
    "gaussian": byov.Gaussian(-9.0),
    "emp": byov.EMP(3, spread=0.2),
    "ecmp": byov.ECMP(3, spread=0.2),
    "dropout": byov.Dropout(0.1),
    "dropconnect": byov.DropConnect(0.1),
    "ensemble": byov.Ensemble(3, start="reset"),
}


def shallow(classes: int = 10, size: str = "mini", patch: int = 4, depth: int = 2) -> nn.Module:
    """byov's ViT, the first blocks of it; without classes an encoder."""
    net = vit(size, classes, patch=patch)
    net.blocks = net.blocks[:depth]
    return net


tiny = partial(shallow, size="nano", patch=16, depth=1)
encoder, tiny_encoder = partial(shallow, 0), partial(tiny, 0)


def steady_encoder() -> nn.Module:
    """Attention as plain matrix products: the gradient of flash attention adds up in an order that changes."""
    net = encoder()
    for block in net.blocks:
        block.attn.fused_attn = False
    return net


def network(name: str, setting: Setting) -> nn.Module:
    if name == "byov-vit":
        return tiny() if setting.tiny else shallow()
    if name == "timm-vit":  # with a randomness of its own
        size = {"patch_size": 8, "embed_dim": 24} if setting.tiny else {"patch_size": 4}
        net = "vit_tiny_patch16_224"
        return timm.create_model(net, img_size=32, depth=2, num_classes=10, drop_path_rate=0.3, **size)
    assert name == "resnet18"
    return ResNet(BasicBlock, [1, 1, 1, 1], 10) if setting.tiny else cifar_resnet18(10)


def bayesian(name: str, family: Family | None, setting: Setting) -> nn.Module:
    """The network under the family, in train mode."""
    net = network(name, setting)
    return (net if family is None else byov.bayesianize(net, family)).to(setting.device).train()


def blocks(count: int, classes: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random images (N, 32, 32, 3) of 4 × 4 blocks, and labels that can be learned: how bright each is of them all."""
    small = np.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    rank = small.mean((1, 2, 3)).argsort().argsort()
    return small.repeat(4, 1).repeat(4, 2), rank * classes // count


def batch(count: int, setting: Setting, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Normalised images and labels, on the device."""
    images, labels = map(torch.from_numpy, blocks(count, seed=seed))
    return (images.permute(0, 3, 1, 2).float() / 127.5 - 1.0).to(setting.device), labels.to(setting.device)
