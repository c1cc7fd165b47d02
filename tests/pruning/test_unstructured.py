"""Pruning: exactly the weights that a brute-force ranking names, files that lose nothing, and the command."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.utils import prune as masks

import byov
from byov.pruning import layers, load_sparse, prune, save_sparse, sweep
from byov.train import checkpoint


class Residual(nn.Module):
    """A ResNet in small: convolutions, BatchNorm, a shortcut, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.body = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.fc((x + self.body(x)).mean((2, 3)))


class Tied(nn.Module):
    """Weights under two names, and a module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.mix = nn.Linear(6, 6)
        self.again = self.mix
        self.out = nn.Linear(6, 11)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.again(torch.tanh(self.mix(self.embed(tokens)))))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm((3, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.token
        return self.norm(self.attend(x, x, x)[0])


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], set[str]]] = {
    "residual": (Residual, lambda: torch.randn(5, 1, 6, 6), {"stem.weight", "body.2.weight", "fc.weight"}),
    "tied": (Tied, lambda: torch.randint(11, (4, 5)), {"embed.weight", "mix.weight"}),
    "lstm": (Recurrent, lambda: torch.randn(2, 2, 3), {"lstm.weight_ih_l0", "lstm.weight_hh_l0"}),
    "attention": (
        Attention,
        lambda: torch.randn(2, 3, 8),
        {"token", "attend.in_proj_weight", "attend.out_proj.weight"},
    ),
}


@pytest.fixture(params=NETWORKS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def bayesian(net: nn.Module, family: Any = None) -> byov.BayesianModule:
    """A posterior whose σ differ from weight to weight, and that has seen a batch where it has BatchNorm."""
    model = byov.bayesianize(net, family or byov.Gaussian(log_var=-4.0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    return model


def weight_at(net: nn.Module, name: str) -> Tensor:
    prefix, _, leaf = name.rpartition(".")
    return getattr(net.get_submodule(prefix), leaf)


def gone(scores: list[float], count: int) -> set[int]:
    """Brute force: the places of the `count` least, the first of equal ones."""
    return set(sorted(range(len(scores)), key=lambda i: (scores[i], i))[:count])


def zeros(tensor: Tensor) -> set[int]:
    return {i for i, value in enumerate(tensor.flatten().tolist()) if value == 0}


# The plain network at the mean


@pytest.mark.parametrize("family", [byov.Gaussian(), byov.Ensemble(3), byov.EMP(3), byov.Dropout(0.1)], ids=repr)
def test_point_is_the_network_from_before_at_the_mean(kind: str, family: Any) -> None:
    make, batch, _ = NETWORKS[kind]
    plain, x = make(), batch()
    model = bayesian(plain, family)
    model(x)  # BatchNorm's statistics move, in an ensemble one component's
    net = model.eval().point()
    assert type(net) is type(plain)
    assert list(net.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in net.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in net.parameters())
    for name, tensor in model.point_state_dict().items():
        assert torch.equal(net.state_dict()[name], tensor)
    torch.testing.assert_close(net(x), model(x))
    before = [t.clone() for t in model.state_dict().values() if isinstance(t, Tensor)]
    net.load_state_dict(make().state_dict(), strict=True)  # and is a network of its own
    assert all(
        torch.equal(a, b)
        for a, b in zip(before, (t for t in model.state_dict().values() if isinstance(t, Tensor)), strict=True)
    )


def test_point_of_an_ensemble_loads_a_state_without_versions() -> None:
    net = byov.bayesianize(nn.BatchNorm1d(3), byov.Ensemble(2)).point()
    state = dict(net.state_dict())
    state["num_batches_tracked"] = torch.tensor(7)
    net.load_state_dict(state, strict=True)
    assert int(net.num_batches_tracked) == 7  # type: ignore[arg-type]


# Which weights go


@pytest.mark.parametrize("by", ["snr", "magnitude"])
@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("sparsity", [0.0, 0.37, 0.9])
def test_the_zeros_are_those_of_a_brute_force_ranking(kind: str, by: Any, scope: Any, sparsity: float) -> None:
    make, batch, names = NETWORKS[kind]
    plain = make()
    model = bayesian(plain).eval()
    mean, std = model.mean(), model.std()
    net = prune(model, sparsity, by, scope)

    order = [name for name, _ in plain.named_parameters() if name in names]
    assert set(order) == names
    score = {n: mean[n].abs() / (std[n] if by == "snr" else torch.ones_like(std[n])) for n in order}
    if scope == "layer":
        expected = {n: gone(score[n].flatten().tolist(), round(sparsity * score[n].numel())) for n in order}
    else:
        flat = [value for n in order for value in score[n].flatten().tolist()]
        all_gone, start, expected = gone(flat, round(sparsity * len(flat))), 0, {}
        for n in order:
            size = score[n].numel()
            expected[n] = {i - start for i in all_gone if start <= i < start + size}
            start += size
    for name in mean:
        weight = weight_at(net, name)
        if name not in names:  # biases and norms
            assert torch.equal(weight, mean[name])
            continue
        assert zeros(weight) == expected[name]
        assert torch.equal(weight[weight != 0], mean[name][weight != 0])
    assert {row.name: row.zeros for row in layers(net)} == {n: len(expected[n]) for n in order}
    assert {row.name: row.weights for row in layers(net)} == {n: mean[n].numel() for n in order}

    # The forward pass is that of the plain network with those zeros.
    x = batch()
    state = {k: v.clone() for k, v in model.point_state_dict().items()}
    reference = make().eval()
    reference.load_state_dict(state)
    with torch.no_grad():
        for name in order:
            reference.get_parameter(name).view(-1)[sorted(expected[name])] = 0
    torch.testing.assert_close(net(x), reference(x))


@given(
    values=st.lists(st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0, 2.0, -3.0]), min_size=1, max_size=40),
    deviations=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=40, max_size=40),
    sparsity=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=60, deadline=None)
def test_ties_and_infinite_snr(values: list[float], deviations: list[float], sparsity: float) -> None:
    net = nn.Linear(len(values), 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([values]))
    model = byov.bayesianize(net, byov.Gaussian())
    with torch.no_grad():
        log_var = dict(model.named_parameters())["q.0.log_var"]
        log_var.copy_(2 * torch.tensor(deviations[: len(values)]).log())  # σ = 0 is log σ² = −∞
    ratio = [0.0 if v == 0 else abs(v) / d if d else float("inf") for v, d in zip(values, deviations, strict=False)]
    order = sorted(range(len(values)), key=lambda i: (ratio[i], abs(values[i]), i))
    count = round(sparsity * len(values))
    pruned = prune(model, sparsity)
    mask = pruned.weight_mask.flatten()  # type: ignore[union-attr, operator]
    assert zeros(mask) == set(order[:count])
    assert torch.isfinite(pruned.weight).all()  # type: ignore[arg-type]


def test_snr_keeps_a_small_sure_weight_and_magnitude_a_large_unsure_one() -> None:
    net = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[0.1, 0.2, 3.0, 4.0]]))
    model = byov.bayesianize(net, byov.Gaussian())
    with torch.no_grad():
        dict(model.named_parameters())["q.0.log_var"].copy_(2 * torch.tensor([0.001, 0.001, 10.0, 10.0]).log())
    close = torch.testing.assert_close
    close(prune(model, 0.5, "snr").weight, torch.tensor([[0.1, 0.2, 0.0, 0.0]]))
    close(prune(model, 0.5, "magnitude").weight, torch.tensor([[0.0, 0.0, 3.0, 4.0]]))


def test_global_takes_from_the_weaker_layer_what_layer_takes_from_both() -> None:
    net = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
    with torch.no_grad():
        net[0].weight.copy_(torch.rand(10, 10) + 1)
        net[1].weight.copy_(torch.rand(10, 10) + 3)
    assert [row.zeros for row in layers(prune(net, 0.5, "magnitude", "layer"))] == [50, 50]
    assert [row.zeros for row in layers(prune(net, 0.5, "magnitude", "global"))] == [100, 0]
    assert [row.zeros for row in layers(prune(net, 0.505, "magnitude", "global"))] == [100, 1]


def test_only_what_has_a_posterior_goes_and_both_rankings_prune_the_same_tensors() -> None:
    model = byov.bayesianize(Residual(), {"fc.*": byov.Gaussian(), byov.norm_layers: byov.EMP(3)})
    for by in ("snr", "magnitude"):
        assert [row.name for row in layers(prune(model, 0.5, by))] == ["fc.weight"]  # type: ignore[arg-type]


def test_where_chooses_the_tensors() -> None:
    net = prune(bayesian(Residual()), 0.5, where=lambda name, module, parameter: name == "fc.bias")
    assert layers(net) == [("fc.bias", 3, 2)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    net = prune(bayesian(nn.Linear(20, 10).to(dtype)), 0.7)
    assert net.weight.dtype == dtype
    assert layers(net)[0].zeros == 140


# What comes back


def test_the_result_is_a_plain_network_with_masks(kind: str) -> None:
    make, batch, names = NETWORKS[kind]
    model, x = bayesian(make()).eval(), batch()
    before = {k: v.clone() for k, v in model.state_dict().items() if isinstance(v, Tensor)}
    net = prune(model, 0.5)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items() if isinstance(v, Tensor))
    assert type(net) is make
    assert masks.is_pruned(net)
    with torch.no_grad():
        expected = net(x)
        torch.testing.assert_close(copy.deepcopy(net)(x), expected)
        torch.testing.assert_close(pickle.loads(pickle.dumps(net))(x), expected)
    assert net.double()(x.double() if x.is_floating_point() else x).dtype == torch.float64  # masks travel along
    net.float()
    trained = {id(p) for p in net.parameters()}
    net.train()(x).square().sum().backward()  # and gradients reach what is left
    assert trained == {id(p) for p in net.parameters() if p.grad is not None}
    for module in net.modules():
        for leaf in [n.removesuffix("_mask") for n in dict(module.named_buffers(recurse=False)) if n.endswith("_mask")]:
            mask, grad = getattr(module, f"{leaf}_mask"), getattr(module, f"{leaf}_orig").grad
            assert torch.equal(grad * (1 - mask), torch.zeros_like(grad))
            masks.remove(module, leaf)
    assert not masks.is_pruned(net)
    assert set(net.state_dict()) == set(make().state_dict())
    for name in names:
        assert len(zeros(net.get_parameter(name))) == round(0.5 * net.get_parameter(name).numel())


def test_ties_are_pruned_once_and_stay_tied() -> None:
    plain = Tied()
    for model, by in ((bayesian(plain), "snr"), (plain, "magnitude")):
        net: Any = prune(model, 0.5, by)  # type: ignore[arg-type]
        assert net.embed.weight_orig is net.out.weight_orig
        assert net.embed.weight_mask is net.out.weight_mask
        assert torch.equal(net.embed.weight, net.out.weight)
        assert [row[:] for row in layers(net)] == [("embed.weight", 66, 33), ("mix.weight", 36, 18)]
        for module in (net.embed, net.out, net.mix):
            masks.remove(module, "weight")
        assert net.embed.weight is net.out.weight
        assert len(zeros(net.embed.weight)) == 33


def test_a_plain_network_is_pruned_by_magnitude_in_a_copy() -> None:
    plain = Residual()
    before = {k: v.clone() for k, v in plain.state_dict().items()}
    net = prune(plain, 0.25, by="magnitude")
    assert all(torch.equal(before[k], v) for k, v in plain.state_dict().items())
    assert not masks.is_pruned(plain)
    reference = copy.deepcopy(plain)
    for module in (reference.stem, reference.body[2], reference.fc):  # torch's own, which ranks the same way
        masks.l1_unstructured(module, "weight", 0.25)
    for name in ("stem.weight", "body.2.weight", "fc.weight"):
        assert torch.equal(weight_at(net, name), weight_at(reference, name))


def test_sweep_hands_over_networks_in_eval_mode() -> None:
    model = bayesian(Residual())
    seen: list[nn.Module] = []

    def share(net: nn.Module) -> float:
        seen.append(net)
        return sum(row.zeros for row in layers(net)) / sum(row.weights for row in layers(net))

    curve = sweep(model, (s / 4 for s in range(4)), share, scope="global")
    assert [s for s, _ in curve] == [0.0, 0.25, 0.5, 0.75]
    assert all(value == pytest.approx(s, abs=0.5 / 192) for s, value in curve)
    assert model.training
    assert not any(net.training for net in seen)


def masked() -> nn.Module:
    return prune(nn.Linear(2, 2), 0.5, "magnitude")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sparsity": 1.0}, "below 1"),
        ({"sparsity": -0.1}, "at least 0"),
        ({"sparsity": float("nan")}, "at least 0"),
        ({"sparsity": True}, "at least 0"),
        ({"sparsity": "0.5"}, "at least 0"),
        ({"by": "luck"}, "'luck'"),
        ({"scope": "block"}, "'block'"),
        ({"model": nn.Linear(2, 2)}, "no σ"),
        ({"model": nn.Sequential(byov.bayesianize(nn.Linear(2, 2), byov.Gaussian())), "by": "magnitude"}, "part"),
        ({"model": nn.LazyLinear(2), "by": "magnitude"}, "lazy"),
        ({"model": masked(), "by": "magnitude"}, "already"),
        ({"model": byov.bayesianize(nn.BatchNorm1d(2), byov.Gaussian())}, "nothing to prune"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {"model": byov.bayesianize(nn.Linear(2, 2), byov.Gaussian()), **change}
    with pytest.raises(ValueError, match=says):
        prune(**arguments)


def test_what_is_no_network_or_no_number_is_refused() -> None:
    with pytest.raises(TypeError, match="list"):
        prune([])  # type: ignore[arg-type]
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="weight holds weights that are not numbers"):
        prune(net, by="magnitude")


# Files


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


def wide(sparsity: float) -> nn.Module:
    net: Any = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Linear(256, 100, bias=False))
    net[2].weight.data = net[2].weight.data.bfloat16()
    nn.init.uniform_(net[1].bias, 1, 2)  # zeros would be packed too
    nn.init.uniform_(net[1].running_mean, 1, 2)
    return prune(net, sparsity, "magnitude")


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
    again: Any = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Linear(256, 100, bias=False))
    again[2].bfloat16()
    load_sparse(tmp_path / "net", again)
    assert torch.equal(again[0].weight, net[0].weight)  # type: ignore[index, arg-type]
    assert torch.equal(again[2].weight, net[2].weight)  # type: ignore[index, arg-type]


def test_a_tied_weight_is_stored_once_before_and_after_remove(tmp_path: Path) -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(200, 100), nn.Linear(100, 200, bias=False)
            self.out.weight = self.embed.weight

    net: Any = prune(Wide(), 0.5, "magnitude")
    save_sparse(net.to(torch.float32), tmp_path / "masked")
    moved = copy.deepcopy(net).double().float()  # which gives each module a mask of its own
    save_sparse(moved, tmp_path / "moved")
    for module in (net.embed, net.out):
        masks.remove(module, "weight")
    save_sparse(net, tmp_path / "removed")
    for name in ("masked", "moved", "removed"):
        assert 200 * 100 * (0.5 * 4 + 1 / 8) < (tmp_path / name).stat().st_size < 200 * 100 * (0.5 * 4 + 1 / 8) + 1000
        again = load_sparse(tmp_path / name, Wide())
        assert torch.equal(again.out.weight, net.embed.weight)  # type: ignore[union-attr, arg-type]


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
