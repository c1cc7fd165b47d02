"""The networks the papers use, and every network of timm and torchvision by name."""

from byov.models.networks import (
    PyramidNet,
    cifar_resnet18,
    convnet,
    pyramidnet,
    regression_mlp,
    resnet,
    table3_mlp,
    vit,
)
from byov.models.registry import create, encoder, names

__all__ = [
    "PyramidNet",
    "cifar_resnet18",
    "convnet",
    "create",
    "encoder",
    "names",
    "pyramidnet",
    "regression_mlp",
    "resnet",
    "table3_mlp",
    "vit",
]
