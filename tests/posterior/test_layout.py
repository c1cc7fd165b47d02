"""Where each parameter lies in the flat tensors, and how it is cut into layers and input units."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from byov.posterior.layout import Layout, Slot, occurrences


def layout_of_net(net: nn.Module) -> Layout:
    return Layout(tuple(Slot.of([n for n, _ in places], places[0][1], p) for p, places in occurrences(net)))


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (nn.Linear(3, 4), 3),
        (nn.Conv2d(4, 6, 3, groups=2), 4),
        (nn.Conv2d(5, 10, 3, groups=5), 5),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), 4),
        (nn.Embedding(7, 3), 7),
        (nn.EmbeddingBag(7, 3), 7),
        (nn.LayerNorm(5), 5),
        (nn.BatchNorm2d(5), 5),
    ],
    ids=repr,
)
def test_there_are_as_many_units_as_inputs(module: Any, inputs: int) -> None:
    layout = layout_of_net(module)
    assert layout.units == inputs
    sizes = torch.bincount(layout.unit_cells()[~layout.bias_cells()])
    assert (sizes == module.weight.numel() // inputs).all()
    if getattr(module, "bias", None) is not None:
        assert layout.split(layout.bias_cells())["bias"].all()
    assert not layout.split(layout.bias_cells())["weight"].any()


def test_attention_is_two_layers_and_a_layer_keeps_weight_and_bias_together() -> None:
    layout = layout_of_net(nn.MultiheadAttention(4, 2))
    layers = {name: cell.unique().tolist() for name, cell in layout.split(layout.layer_cells()).items()}
    assert layers == {"in_proj_weight": [0], "in_proj_bias": [0], "out_proj.weight": [1], "out_proj.bias": [1]}
