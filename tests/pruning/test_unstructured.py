"""Pruning of single weights: exactly those that a brute-force ranking names, in a network that is still a network."""

import copy
import pickle
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune as masks

import byov
from byov.pruning import cubic, layers, prune, prune_gradually, sweep

from .networks import NETWORKS, Residual, Tied, bayesian, weight_at


def gone(scores: list[float], count: int) -> set[int]:
    """Brute force: the places of the `count` least, the first of equal ones."""
    return set(sorted(range(len(scores)), key=lambda i: (scores[i], i))[:count])


def zeros(tensor: Tensor) -> set[int]:
    return {i for i, value in enumerate(tensor.flatten().tolist()) if value == 0}


# Which weights go


@pytest.mark.parametrize("by", ["snr", "magnitude"])
@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("sparsity", [0.0, 0.37, 0.9])
@pytest.mark.parametrize("kind", NETWORKS)
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


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_random_pruning_has_exactly_the_sparsity_and_ignores_magnitude(scope: Any) -> None:
    net = nn.Sequential(nn.Linear(60, 50), nn.Linear(50, 30))
    with torch.no_grad():
        net[0].weight.copy_(torch.arange(3000.0).view(50, 60) + 1)
        net[1].weight.fill_(1e6)
    total, found = 4500, {}
    for sparsity in (0.0, 0.37, 0.9):
        rows = layers(prune(net, sparsity, "random", scope, seed=3))
        assert sum(row.zeros for row in rows) == round(sparsity * total)
        if scope == "layer":
            assert [row.zeros for row in rows] == [round(sparsity * row.weights) for row in rows]
        else:  # each layer loses about its share, by a hypergeometric draw; 5 deviations are 4 %
            assert all(row.zeros / row.weights == pytest.approx(sparsity, abs=0.05) for row in rows)
    for seed in (3, 3, 4):
        pruned: Any = prune(net, 0.5, "random", scope, seed=seed)
        found.setdefault(seed, []).append([pruned[0].weight_mask.flatten(), pruned[1].weight_mask.flatten()])
    (first, again), (other,) = found.values()
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    # Sizes rise along the first layer, and half of either half goes: 5 deviations of 1,500 fair coins are 97.
    assert all(abs(int(half.sum()) - 750) < 97 for half in first[0].chunk(2))
    with torch.no_grad():
        net[0].weight.copy_(net[0].weight.flip(0))
    assert torch.equal(prune(net, 0.5, "random", scope, seed=3)[0].weight_mask.flatten(), first[0])
    more = prune(net, 0.8, "random", scope, seed=3)[0].weight_mask.flatten()
    assert not (more > first[0]).any()  # what is gone at 50 % is gone at 80 %
    bayesian_net = prune(byov.bayesianize(net, byov.Gaussian()), 0.5, "random", scope, seed=3)
    assert torch.equal(bayesian_net[0].weight_mask.flatten(), first[0])


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
    mask = pruned.weight_mask.flatten()
    assert zeros(mask) == set(order[:count])
    assert torch.isfinite(pruned.weight).all()


def test_only_what_has_a_posterior_goes_and_both_rankings_prune_the_same_tensors() -> None:
    model = byov.bayesianize(Residual(), {"fc.*": byov.Gaussian(), byov.norm_layers: byov.EMP(3)})
    for by in ("snr", "magnitude"):
        assert [row.name for row in layers(prune(model, 0.5, by))] == ["fc.weight"]


# What comes back


@pytest.mark.parametrize("kind", NETWORKS)
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_where_chooses_the_tensors_and_other_dtypes_are_ranked_too(dtype: torch.dtype) -> None:
    net = prune(bayesian(Residual().to(dtype)), 0.5, where=lambda name, module, parameter: name == "fc.bias")
    assert layers(net) == [("fc.bias", 3, 2)]
    assert weight_at(net, "fc.bias").dtype == dtype


def test_ties_are_pruned_once_and_stay_tied() -> None:
    plain = Tied()
    for model, by in ((bayesian(plain), "snr"), (plain, "magnitude")):
        net: Any = prune(model, 0.5, by)
        assert net.embed.weight_orig is net.out.weight_orig
        assert net.embed.weight_mask is net.out.weight_mask
        assert torch.equal(net.embed.weight, net.out.weight)
        assert [row[:] for row in layers(net)] == [("embed.weight", 66, 33), ("mix.weight", 36, 18)]
        for module in (net.embed, net.out, net.mix):
            masks.remove(module, "weight")
        assert net.embed.weight is net.out.weight
        assert len(zeros(net.embed.weight)) == 33


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


def diverged() -> nn.Module:
    net = nn.Linear(2, 2)
    nn.init.constant_(net.weight, float("nan"))
    return net


@pytest.mark.parametrize(
    ("change", "says"),
    [
        *[({"sparsity": s}, "at least 0 and below 1, not") for s in (1.0, -0.1, float("nan"), True, "0.5")],
        ({"by": "luck"}, "'luck'"),
        ({"scope": "block"}, "'block'"),
        ({"model": nn.Linear(2, 2)}, "no σ"),
        ({"model": nn.Sequential(byov.bayesianize(nn.Linear(2, 2), byov.Gaussian())), "by": "magnitude"}, "part"),
        ({"model": nn.LazyLinear(2), "by": "magnitude"}, "lazy"),
        ({"model": masked(), "by": "magnitude"}, "already"),
        ({"model": diverged(), "by": "magnitude"}, "weight holds weights that are not numbers"),
        ({"model": []}, "not list"),
        ({"model": byov.bayesianize(nn.BatchNorm1d(2), byov.Gaussian())}, "nothing to prune"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {"model": byov.bayesianize(nn.Linear(2, 2), byov.Gaussian()), **change}
    with pytest.raises((ValueError, TypeError), match=says):
        prune(**arguments)


# Gradually


@pytest.fixture
def model() -> byov.BayesianModule:
    """A posterior whose deviations differ from weight to weight."""
    torch.manual_seed(0)
    model = byov.bayesianize(nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)), byov.Gaussian())
    nn.init.uniform_(model.factors[0].get_parameter("log_var"), -12, -4)
    return model.eval()


class FineTune:
    """A few steps of Adam, with one optimizer for all rounds; it remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[tuple[nn.Module, list[int], list[Tensor]]] = []
        self.optimizer: Any = None

    def __call__(self, net: nn.Module) -> None:
        assert net.training
        masks = [buffer.clone() for name, buffer in net.named_buffers() if name.endswith("_mask")]
        self.given.append((net, [row.zeros for row in layers(net)], masks))
        self.optimizer = self.optimizer or torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=1e-3)
        for _ in range(3):
            self.optimizer.zero_grad()
            net(torch.randn(20, 64)).square().mean().backward()
            self.optimizer.step()


def test_the_cubic_schedule() -> None:
    assert cubic(0.8, 1) == [0.8]
    found = cubic(0.9, 3)
    assert found == pytest.approx([0.9 * 19 / 27, 0.9 * 26 / 27, 0.9])


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("by", ["snr", "magnitude"])
def test_masks_grow_round_by_round_and_are_held(model: byov.BayesianModule, by: Any, scope: Any) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    tune, reported = FineTune(), []
    net = prune_gradually(model, tune, 0.9, 4, by, scope, report=lambda s, _: reported.append(s))
    assert reported == cubic(0.9, 4)
    assert all(given is net for given, _, _ in tune.given)
    sizes = [64 * 48, 48 * 10]
    for step, (_, zeros, _) in zip(reported, tune.given, strict=True):
        if scope == "layer":
            assert zeros == [round(step * size) for size in sizes]
        else:
            assert sum(zeros) == round(step * sum(sizes))
    for (_, _, earlier), (_, _, later) in pairwise(tune.given):
        assert all((new <= old).all() for old, new in zip(earlier, later, strict=True))
    final: Any = net
    for layer in (final[0], final[2]):
        assert torch.equal(layer.weight == 0, layer.weight_mask == 0)
    state = model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in before.items())


def test_later_rounds_rank_by_the_weight_as_it_is_over_its_deviation(model: byov.BayesianModule) -> None:
    """Round two takes, of what is left, the least |w|/σ with w as fine-tuning left it."""
    seen: list[Any] = []

    def shuffle(net: Any) -> None:
        if not seen:
            with torch.no_grad():
                net[0].weight_orig.copy_(torch.rand(48, 64) + 0.1)
        seen.append((net[0].weight_orig.detach().clone(), net[0].weight_mask.clone()))

    prune_gradually(model, shuffle, 0.6, 2, schedule=lambda s, n: [0.3, s])
    (weight, first), (_, second) = seen
    snr = weight / model.std()["0.weight"]
    snr[first == 0] = 0
    expected = snr > snr.flatten().kthvalue(round(0.6 * snr.numel())).values
    assert torch.equal(second.bool(), expected)


def test_a_plain_network_and_tied_weights() -> None:
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight

    def step(net: nn.Module) -> None:
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        net(torch.randn(8, 4)).square().sum().backward()
        optimizer.step()

    net: Any = prune_gradually(tied, step, 0.5, 3, "magnitude")
    assert [row.zeros for row in layers(net)] == [8]
    assert net[0].weight_orig is net[2].weight_orig
    assert net[0].weight_mask is net[2].weight_mask


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rounds": 0}, "at least one round, not 0"),
        ({"rounds": 2.0}, "at least one round"),
        ({"sparsity": 1.0}, "below 1"),
        ({"schedule": lambda s, n: [0.5, 0.4]}, "increase within"),
        ({"schedule": lambda s, n: []}, "increase within"),
        ({"by": "luck"}, "'luck'"),
        ({"by": "random"}, "snr or magnitude, not by 'random'"),
    ],
)
def test_bad_input_is_refused_before_any_training(change: dict[str, Any], says: str) -> None:
    def never(net: nn.Module) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match=says):
        prune_gradually(nn.Linear(3, 2), never, **{"by": "magnitude", **change})


def test_a_fine_tuning_that_diverges_is_told() -> None:
    def diverge(net: Any) -> None:
        net.weight_orig.data.fill_(float("nan"))

    with pytest.raises(ValueError, match="diverged"):
        prune_gradually(nn.Linear(3, 2), diverge, 0.5, 2, "magnitude")
