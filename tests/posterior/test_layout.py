"""Where each parameter lies in the flat tensors, and how it is cut into layers and input units."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_networks import Tied
from torch import nn

from byov.posterior.layout import Layout, Slot, occurrences

shapes = st.lists(st.lists(st.integers(1, 4), max_size=4).map(tuple), min_size=1, max_size=6)


def layout_of_net(net: nn.Module) -> Layout:
    return Layout(tuple(Slot.of([n for n, _ in places], places[0][1], p) for p, places in occurrences(net)))


@settings(max_examples=60, deadline=None)
@given(shapes, st.lists(st.integers(1, 3), max_size=2))
def test_split_gives_named_views_in_order_and_flatten_undoes_it(sizes: list[tuple[int, ...]], lead: list[int]) -> None:
    layout = Layout(tuple(Slot.of([f"m{i}.weight"], nn.Module(), torch.empty(s)) for i, s in enumerate(sizes)))
    flat = torch.arange(float(prod(lead) * layout.numel)).view(*lead, layout.numel)
    named = layout.split(flat)
    assert [tuple(v.shape) for v in named.values()] == [(*lead, *s) for s in sizes]
    assert torch.equal(torch.cat([v.reshape(*lead, -1) for v in named.values()], dim=-1), flat)
    assert all(v.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() for v in named.values())
    one = flat.reshape(-1, layout.numel)[0]
    assert torch.equal(layout.flatten(layout.split(one)), one)


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


def test_a_tied_parameter_is_one_slot_with_two_names() -> None:
    net = Tied()
    layout = layout_of_net(net)
    assert next(slot.names for slot in layout.slots) == ("embed.weight", "out.weight")
    assert layout.numel == sum(p.numel() for p in net.parameters())
