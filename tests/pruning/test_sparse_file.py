"""Sparse files: they lose nothing, have the size they should, and refuse what does not fit."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import nn
from torch.nn.utils import prune as masks

import byov
from byov.pruning import load_sparse, prune, save_sparse
from byov.train import checkpoint

from .networks import NETWORKS, bayesian, weight_at


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_sparse_file_gives_the_network_back(kind: str, tmp_path: Path) -> None:
    make, batch, _ = NETWORKS[kind]
    net = prune(bayesian(make()), 0.9).eval()
    x = batch()
    with torch.no_grad():
        expected = net(x)
        save_sparse(net, tmp_path / "net.safetensors")
        again = make().eval()
        assert load_sparse(tmp_path / "net.safetensors", again) is again
        assert torch.equal(again(x), expected)
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, weight_at(net, name))


def wide(sparsity: float | None) -> nn.Module:
    net: Any = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Linear(256, 100, bias=False))
    net[2].weight.data = net[2].weight.data.bfloat16()
    nn.init.uniform_(net[1].bias, 1, 2)  # zeros would be packed too
    nn.init.uniform_(net[1].running_mean, 1, 2)
    return net if sparsity is None else prune(net, sparsity, "magnitude")


@pytest.mark.parametrize("sparsity", [0.0, 0.02, 0.5, 0.9])
def test_the_size_of_a_file_is_a_bit_and_the_kept_values_or_dense(sparsity: float, tmp_path: Path) -> None:
    net = wide(sparsity)
    save_sparse(net, tmp_path / "net", {"from": "a test"})
    total = (256 + 4 * 256) * 4 + 8  # the bias, BatchNorm and its count
    for numel, itemsize in ((256 * 256, 4), (256 * 100, 2)):
        total += min(numel * itemsize, numel // 8 + (numel - round(sparsity * numel)) * itemsize)
    size = (tmp_path / "net").stat().st_size
    assert total < size < total + 2500  # the header
    with safe_open(tmp_path / "net", "pt") as file:  # any reader of the format reads it
        assert len(list(file.keys())) == 8 + {0.0: 0, 0.02: 0}.get(sparsity, 2)
    assert checkpoint.peek(tmp_path / "net")["about"] == {"from": "a test"}
    again: Any = load_sparse(tmp_path / "net", wide(None))
    assert torch.equal(again[0].weight, net[0].weight)
    assert torch.equal(again[2].weight, net[2].weight)


def test_a_tied_weight_is_stored_once_before_and_after_remove(tmp_path: Path) -> None:
    def tied() -> Any:
        net = nn.Sequential(nn.Embedding(200, 100), nn.Linear(100, 200, bias=False))
        net[1].weight = net[0].weight
        return net

    net: Any = prune(tied(), 0.5, "magnitude")
    save_sparse(net.to(torch.float32), tmp_path / "masked")
    moved = copy.deepcopy(net).double().float()  # which gives each module a mask of its own
    save_sparse(moved, tmp_path / "moved")
    for module in net:
        masks.remove(module, "weight")
    save_sparse(net, tmp_path / "removed")
    for name in ("masked", "moved", "removed"):
        assert 200 * 100 * (0.5 * 4 + 1 / 8) < (tmp_path / name).stat().st_size < 200 * 100 * (0.5 * 4 + 1 / 8) + 1000
        again = load_sparse(tmp_path / name, tied())
        assert torch.equal(again[1].weight, net[0].weight)


@given(kept=st.lists(st.booleans(), min_size=1, max_size=400), special=st.sampled_from([float("nan"), -1e-45, 2.0]))
@settings(max_examples=30, deadline=None)
def test_any_pattern_of_zeros_survives(
    kept: list[bool], special: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("sparse") / "net"
    net = nn.Linear(len(kept), 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([kept]) * torch.randn(1, len(kept)))
        net.weight[0, kept.index(True) if any(kept) else 0] = special
    save_sparse(net, path)
    again = load_sparse(path, nn.Linear(len(kept), 1, bias=False).double())
    torch.testing.assert_close(again.weight, net.weight, rtol=0, atol=0, equal_nan=True)


def test_files_of_another_kind_or_network_are_refused_before_anything_changes(tmp_path: Path) -> None:
    path = tmp_path / "net"
    save_sparse(wide(0.9), path)
    other = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Linear(256, 10, bias=False))
    before = other[0].weight.clone()
    with pytest.raises(ValueError, match=r"2\.weight is \(100, 256\), not \(10, 256\)"):
        load_sparse(path, other)
    with pytest.raises(ValueError, match=r"only the network has 3\.weight"):
        load_sparse(path, nn.Sequential(*other[:2], nn.Linear(256, 100, bias=False), nn.Linear(1, 1)))
    with pytest.raises(ValueError, match=r"only it has 2\.weight"):
        load_sparse(path, other[:2])
    assert torch.equal(other[0].weight, before)
    with pytest.raises(ValueError, match="has masks"):
        load_sparse(path, wide(0.9))
    model = byov.bayesianize(nn.Linear(2, 2), byov.Gaussian())
    with pytest.raises(TypeError, match="BayesianModule"):
        load_sparse(path, model)
    with pytest.raises(TypeError, match="BayesianModule"):
        save_sparse(model, path)
    tree = checkpoint.load(path)
    tree["state"]["0.weight"]["bits"][0] ^= 1
    checkpoint.save(path, tree)
    with pytest.raises(ValueError, match="damaged"):
        load_sparse(path, nn.Sequential(*other[:2], nn.Linear(256, 100, bias=False)))
    checkpoint.save(path, {"kind": "another"})
    with pytest.raises(ValueError, match="not one of sparse weights"):
        load_sparse(path, other)
