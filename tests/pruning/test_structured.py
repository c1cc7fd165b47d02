"""Structured pruning: which groups go, and that the smaller network is the masked one."""

import copy
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers.attention import Attention
from torch import Tensor, nn
from torch.nn.utils import prune as masks

import byov
from byov.models import create
from byov.posterior.module import BayesianModule
from byov.pruning import find_blocks, group_scores, load_sparse, mask_groups, prune, prune_groups, save_sparse, shrink

from .networks import bayesian


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Sigmoid(), nn.Linear(9, 5), nn.GELU(), nn.Linear(5, 3))


def gated() -> nn.Module:
    net = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=32, num_heads=4, num_classes=5)
    for block in net.blocks:
        block.attn = Attention(32, 4, qkv_bias=True, qk_norm=True, gated=True, norm_layer=nn.LayerNorm)
    return net


NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mlp": (mlp, (7, 6)),
    "vit": (lambda: create("vit-nano/4", 5, 3, 16), (3, 3, 16, 16)),
    "timm": (lambda: timm.create_model("deit3_small_patch16_224", img_size=32, depth=2, num_classes=5), (2, 3, 32, 32)),
    "gated": (gated, (2, 3, 32, 32)),
    "convnet": (lambda: create("convnet16", 5, 1), (3, 1, 8, 8)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), (2, 4, 8)),
}


def network(kind: str) -> tuple[nn.Module, Tensor]:
    """A network whose every parameter and statistic is random, so that no unit is like another; and an input."""
    make, shape = NETWORKS[kind]
    net, generator = make(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in (*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())):
            tensor.copy_(torch.rand(tensor.shape, generator=generator).mul(0.4).add(0.01))
    return net.eval(), torch.randn(shape, generator=generator)


# What goes


@pytest.mark.parametrize("by", ["snr", "magnitude"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_the_smaller_network_is_the_masked_one(kind: str, by: Any) -> None:
    net, x = network(kind)
    model = bayesian(net)
    wide, small = mask_groups(model, 0.5, 0.4, by), prune_groups(model, 0.5, 0.4, by)
    assert masks.is_pruned(wide)
    assert not masks.is_pruned(small)
    with torch.no_grad():
        before, expected, found = model.point().eval()(x), wide(x), small(x)
    assert not torch.allclose(before, expected, atol=1e-3)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(shrink(wide)(x), expected, rtol=1e-4, atol=1e-5)
    count = sum(p.numel() for p in small.parameters())
    assert count < 0.85 * sum(p.numel() for p in model.point().parameters())
    assert sum(p.numel() for p in shrink(wide).parameters()) == count
    again = prune_groups(model, 0.5, 0.4, by)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), small.parameters(), strict=True))


def test_torchvision_loses_units_but_no_heads() -> None:
    net = create("torchvision:vit_b_16", 5, 3, 32)
    del net.encoder.layers[1:]  # one layer says it all
    x = torch.randn(1, 3, 32, 32)
    small, wide = (f(net.eval(), 0.5, 0.5, "magnitude") for f in (prune_groups, mask_groups))
    assert [block.kind for block in find_blocks(net)] == ["units"]
    torch.testing.assert_close(small(x), wide(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=r"nn\.MultiheadAttention cannot run with fewer heads"):
        prune_groups(net, 0.5, 0.0, "magnitude")


Piece = tuple[str, Any]
"""A part of a group: the parameter's name and the index into it."""


def scored(model: BayesianModule, by: str, groups: list[list[Piece]]) -> Tensor:
    """The score of each group, from a list of its weights."""
    found, moments = [], (model.mean(), model.std())
    for pieces in groups:
        mu, sigma = (torch.cat([values[name][index].flatten() for name, index in pieces]) for values in moments)
        found.append(mu.norm() / sigma.norm() if by == "snr" else mu.square().mean().sqrt())
    return torch.stack(found)


def groups_of(kind: str, name: str) -> list[list[Piece]]:
    """The weights of the two heads of our ViT's attention, or of the 256 units of its MLP."""
    if kind == "heads":
        rows = torch.arange(192).view(3, 2, 32)
        own = [(f"{name}.qkv", rows[:, i].flatten(), f"{name}.proj", rows[0, i]) for i in range(2)]
    else:
        own = [(name, torch.tensor([i]), name.replace("fc1", "fc2"), torch.tensor([i])) for i in range(256)]
    return [
        [(f"{one}.weight", rows), (f"{one}.bias", rows), (f"{two}.weight", (slice(None), columns))]
        for one, rows, two, columns in own
    ]


@pytest.mark.parametrize("by", ["snr", "magnitude"])
def test_scores_are_the_ratio_of_norms(by: Any) -> None:
    model = bayesian(network("vit")[0])
    blocks = find_blocks(model.point())
    assert [(b.kind, b.units) for b in blocks] == [("heads", 2), ("units", 256)] * 4
    for block in blocks:
        expected = scored(model, by, groups_of(block.kind, block.name))
        torch.testing.assert_close(group_scores(model, block, by).float(), expected)


def test_the_snr_of_a_group_is_that_of_its_weights_with_a_posterior() -> None:
    """What stays a point counts neither as signal nor as noise."""
    model = byov.bayesianize(network("mlp")[0], {"3.bias": byov.Gaussian(), "5.*": byov.Gaussian()})
    nn.init.uniform_(model.factors[0].get_parameter("log_var"), -12, -4)
    block = next(block for block in find_blocks(model.point()) if block.name == "3")
    covered: list[list[Piece]] = [[("3.bias", unit), ("5.weight", (slice(None), unit))] for unit in range(5)]
    torch.testing.assert_close(group_scores(model, block).float(), scored(model, "snr", covered))


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_the_least_groups_go_and_one_stays_in_every_block(scope: Any) -> None:
    model = bayesian(network("vit")[0])
    with torch.no_grad():
        model.factors[0].layout.split(model.factors[0].log_var)["blocks.1.mlp.fc1.weight"].fill_(8.0)  # hopeless
    units = [scored(model, "snr", groups_of("units", f"blocks.{i}.mlp.fc1")) for i in range(4)]
    small: Any = prune_groups(model, 0.0, 0.5, scope=scope)
    mean, whole = model.mean(), torch.cat(units)
    threshold = whole.sort().values[len(whole) // 2]
    for i, score in enumerate(units):
        stay = score > score.sort().values[127] if scope == "layer" else score >= threshold
        stay[score.argmax()] = True
        if scope == "global":
            assert abs(len(small.blocks[i].mlp.fc1.weight) - int(stay.sum())) <= 1
            continue
        assert torch.equal(small.blocks[i].mlp.fc1.weight, mean[f"blocks.{i}.mlp.fc1.weight"][stay])
        assert torch.equal(small.blocks[i].mlp.fc2.weight, mean[f"blocks.{i}.mlp.fc2.weight"][:, stay])
    sizes = [block.mlp.fc1.out_features for block in small.blocks]
    assert sizes == [128] * 4 if scope == "layer" else sizes[1] == 1 and sum(sizes) == 512
    assert all(block.attn.num_heads == 2 for block in small.blocks)


@given(st.floats(0, 0.999), st.sampled_from(["layer", "global"]))
@settings(max_examples=30, deadline=None)
def test_any_share_leaves_a_network_that_runs(share: float, scope: Any) -> None:
    net, x = network("mlp")
    small: Any = prune_groups(net, share, share, "magnitude", scope)
    assert small(x).shape == (7, 3)
    assert min(small[0].out_features, small[3].out_features) >= 1
    if scope == "layer":
        assert small[0].out_features == max(1, 9 - round(share * 9))
        assert small[1].num_features == len(small[1].running_var) == small[0].out_features


def test_the_masked_network_is_left_as_it_is() -> None:
    net, x = network("vit")
    wide = mask_groups(bayesian(net))
    expected = wide(x)
    shrink(wide)
    assert masks.is_pruned(wide)
    assert torch.equal(wide(x), expected)


# What is left alone


def test_what_does_not_act_on_units_one_by_one_is_no_block() -> None:
    shared = nn.Linear(4, 4)
    for net in (
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.Softmax(1), nn.Linear(4, 2)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 2)),
        nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2)),
        nn.Sequential(shared, nn.ReLU(), shared),
        nn.Linear(3, 2),
        create("resnet18", 10),
    ):
        with pytest.raises(ValueError, match="no heads or units that can be removed"):
            prune_groups(net, by="magnitude")


def test_shrink_removes_what_any_mask_left_without_readers() -> None:
    net, x = network("mlp")
    masks.ln_structured(net[3], "weight", amount=4, n=2, dim=1)  # torch's own
    net.train()
    net(x).sum().backward()  # masked weights with a graph, which torch would not copy
    net.eval()
    small: Any = shrink(net)
    assert (small[0].out_features, small[3].in_features) == (5, 5)
    torch.testing.assert_close(small(x), net(x))
    torch.testing.assert_close(shrink(prune(bayesian(mlp()), 0.9)).eval()(x[:1]).shape, torch.Size([1, 3]))


def test_shrink_keeps_one_unit_of_a_layer_without_readers() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    nn.init.zeros_(net[2].weight)
    small: Any = shrink(net)
    assert small[0].out_features == 1
    assert torch.equal(small(torch.ones(1, 2)), net[2].bias[None])


def test_where_chooses_blocks() -> None:
    small: Any = prune_groups(network("vit")[0], by="magnitude", where=lambda block: block.name.startswith("blocks.2"))
    assert [block.mlp.fc1.out_features for block in small.blocks] == [256, 256, 128, 256]
    assert [block.attn.num_heads for block in small.blocks] == [2, 2, 1, 2]


# Files


def test_a_smaller_network_is_saved_and_loaded(tmp_path: Path) -> None:
    model = bayesian(network("vit")[0])
    small, x = prune_groups(model), network("vit")[1]
    save_sparse(small, tmp_path / "small", {"groups": True})
    fresh = create("vit-nano/4", 5, 3, 16).eval()
    assert torch.equal(load_sparse(tmp_path / "small", fresh)(x), small(x))
    other = create("vit-nano/4", 6, 3, 16)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match="of another network: its head"):
        load_sparse(tmp_path / "small", other)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in before.items())
    assert other.blocks[0].attn.num_heads == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"heads": 1.0}, "below 1, not 1.0"),
        ({"units": -0.1}, "not -0.1"),
        ({"by": "random"}, "snr or magnitude, not by 'random'"),
        ({"by": "snr"}, "no σ"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        prune_groups(mlp(), **{"by": "magnitude", **change})


def test_a_block_without_a_posterior_has_no_snr() -> None:
    model = byov.bayesianize(mlp(), {"5.*": byov.Gaussian()})
    with pytest.raises(ValueError, match="No weight of 0 has a posterior"):
        prune_groups(model)
    small: Any = prune_groups(model, where=lambda block: block.name == "3")
    assert small[5].in_features == 3  # by the covered half of its weights
    with pytest.raises(TypeError, match="not BayesianModule"):
        shrink(model)
