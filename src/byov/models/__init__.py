"""The networks used in the papers, and all networks of timm and torchvision by name."""

from byov.models.mlp import regression_mlp, table3_mlp
from byov.models.pyramidnet import PyramidNet, pyramidnet
from byov.models.registry import create, encoder, names
from byov.models.resnet import cifar_resnet18, convnet, resnet
from byov.models.vit import vit

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
