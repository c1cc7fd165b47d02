"""Where each parameter lies in the flat tensors, and how it is cut into layers and input units."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from byov.posterior.layout import Layout, Slot, occurrences

from .networks import Tied

shapes = st.lists(st.lists(st.integers(1, 4), max_size=4).map(tuple), min_size=1, max_size=6)


def layout_of(all_shapes: list[tuple[int, ...]]) -> Layout:
    owner = nn.Module()
    return Layout(tuple(Slot.of([f"m{i}.weight"], owner, torch.empty(s)) for i, s in enumerate(all_shapes)))


def layout_of_net(net: nn.Module) -> Layout:
    return Layout(tuple(Slot.of([n for n, _ in places], places[0][1], p) for p, places in occurrences(net)))


@settings(max_examples=60, deadline=None)
@given(shapes, st.lists(st.integers(1, 3), max_size=2))
def test_split_gives_named_views_in_order_and_flatten_undoes_it(sizes: list[tuple[int, ...]], lead: list[int]) -> None:
    layout = layout_of(sizes)
    flat = torch.arange(float(prod(lead) * layout.numel)).view(*lead, layout.numel)
    named = layout.split(flat)
    assert [tuple(v.shape) for v in named.values()] == [(*lead, *s) for s in sizes]
    assert torch.equal(torch.cat([v.reshape(*lead, -1) for v in named.values()], dim=-1), flat)
    assert all(v.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() for v in named.values())
    one = flat.reshape(-1, layout.numel)[0]
    assert torch.equal(layout.flatten(layout.split(one)), one)


@settings(max_examples=30, deadline=None)
@given(shapes)
def test_flatten_broadcasts_a_number_to_its_parameter(sizes: list[tuple[int, ...]]) -> None:
    layout = layout_of(sizes)
    flat = layout.flatten({f"m{i}.weight": torch.tensor(float(i)) for i in range(len(sizes))})
    assert flat.tolist() == [float(i) for i, s in enumerate(sizes) for _ in range(prod(s))]


@settings(max_examples=30, deadline=None)
@given(shapes)
def test_every_element_lies_in_one_layer_and_one_unit(sizes: list[tuple[int, ...]]) -> None:
    layout = layout_of(sizes)
    assert layout.layers == len(sizes)
    assert layout.layer_cells().unique().tolist() == list(range(layout.layers))
    units, bias = layout.unit_cells(), layout.bias_cells()
    assert len(units) == len(bias) == layout.numel
    assert units[~bias].unique().tolist() == list(range(layout.units))
    assert (units[bias] == layout.units).all()


def test_the_backward_of_split_is_one_cat() -> None:
    flat = torch.randn(12, requires_grad=True)
    first, second = layout_of([(2, 3), (6,)]).split(flat).values()
    ((first * 2).sum() + (second * 3).sum()).backward()
    assert flat.grad is not None
    assert flat.grad.tolist() == [2.0] * 6 + [3.0] * 6
    assert "SplitWithSizes" in type(first.grad_fn.next_functions[0][0]).__name__


def test_layers_keep_weight_and_bias_together() -> None:
    layout = layout_of_net(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.MultiheadAttention(4, 2)))
    cells = layout.split(layout.layer_cells())
    assert {name: cell.unique().tolist() for name, cell in cells.items()} == {
        "0.weight": [0],
        "0.bias": [0],
        "1.weight": [1],
        "1.bias": [1],
        "2.in_proj_weight": [2],
        "2.in_proj_bias": [2],
        "2.out_proj.weight": [3],
        "2.out_proj.bias": [3],
    }


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (nn.Linear(3, 4), 3),
        (nn.Conv1d(4, 6, 3), 4),
        (nn.Conv2d(4, 6, 3, groups=2), 4),
        (nn.Conv2d(5, 10, 3, groups=5), 5),
        (nn.Conv3d(2, 3, 2), 2),
        (nn.ConvTranspose2d(4, 6, 3), 4),
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


def test_a_tied_parameter_is_one_slot_with_two_names() -> None:
    net = Tied()
    layout = layout_of_net(net)
    assert next(slot.names for slot in layout.slots) == ("embed.weight", "out.weight")
    assert layout.numel == sum(p.numel() for p in net.parameters())
    named = layout.split(torch.arange(float(layout.numel)))
    everywhere = layout.with_ties(named)
    assert everywhere["out.weight"] is everywhere["embed.weight"] is named["embed.weight"]
    assert set(everywhere) == set(net.state_dict())
