"""The ensemble family: what shares an assignment, how often each component is taken, equation (6) and theorem 2."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from small_networks import seeded, shake
from torch import Tensor, nn

import byov
from byov.posterior import Family
from byov.posterior.layout import Layout, Slot, occurrences

PROBS = (0.5, 0.3, 0.2)
KINDS, DROPPING = (byov.Ensemble, byov.EMP, byov.ECMP), (byov.Dropout, byov.DropConnect)


def numbered(net: nn.Module, family: Family) -> byov.BayesianModule:
    """A model whose component k is the number k everywhere, so that a draw shows its assignment."""
    model = byov.bayesianize(net, family)
    with torch.no_grad():
        components = model.factors[0].components
        components.copy_(torch.arange(float(len(components)))[:, None].expand_as(components))
    return model


def assignments(net: nn.Module, family: Family, n: int) -> dict[str, Tensor]:
    draws = numbered(net, family).sample(n, seeded())
    return {name: draw.detach().flatten(1).long() for name, draw in draws.items()}


def independent(a: Tensor, b: Tensor, k: int = 3) -> float:
    """The p-value of a χ² test of independence."""
    table = np.zeros((k, k))
    np.add.at(table, (a.numpy(), b.numpy()), 1)
    return stats.chi2_contingency(table).pvalue


def fits(z: Tensor, probs: tuple[float, ...]) -> float:
    """The p-value of a χ² test of the components' frequencies."""
    counts = torch.bincount(z, minlength=len(probs)).numpy()
    return stats.chisquare(counts, np.array(probs) * counts.sum()).pvalue


def each_by_itself(z: Tensor, probs: tuple[float, ...]) -> None:
    """Every column has these frequencies, and no two depend on each other."""
    columns, k = range(z.shape[1]), len(probs)
    assert min(fits(z[:, i], probs) for i in columns) > 0.001 / len(columns)
    pairs = [(i, j) for i in columns for j in range(i)]
    assert min(independent(z[:, i], z[:, j], k) for i, j in pairs) > 0.001 / len(pairs)


def small(value: float | None = None) -> nn.Sequential:
    """A small network; with a value, all its parameters are that number."""
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    for parameter in net.parameters() if value is not None else ():
        nn.init.constant_(parameter, value)
    return net


# What shares an assignment


def test_emp_is_equal_inside_a_layer_and_independent_across() -> None:
    z = assignments(small(), byov.EMP(3, probs=PROBS), 2000)
    for layer in ("0", "1", "2"):
        together = torch.cat([z[f"{layer}.weight"], z[f"{layer}.bias"]], dim=1)
        assert (together == together[:, :1]).all()
        assert fits(together[:, 0], PROBS) > 0.001
    for a, b in (("0", "1"), ("0", "2"), ("1", "2")):
        assert independent(z[f"{a}.weight"][:, 0], z[f"{b}.weight"][:, 0]) > 0.001


@pytest.mark.parametrize("probs", [PROBS, None])
def test_ecmp_is_independent_per_element_and_an_ensemble_is_one_component(probs: tuple[float, ...] | None) -> None:
    each, one = (
        torch.cat(list(assignments(small(), kind(3, probs=probs), 2000).values()), dim=1)
        for kind in (byov.ECMP, byov.Ensemble)
    )
    each_by_itself(each, probs or (1 / 3,) * 3)
    assert (one == one[:, :1]).all()
    assert fits(one[:, 0], probs or (1 / 3,) * 3) > 0.001


def test_dropconnect_drops_each_weight_by_itself_and_no_bias() -> None:
    n, p = 2000, 0.3
    draws = byov.bayesianize(small(0.7), byov.DropConnect(p)).sample(n, seeded())
    kept = []
    for name, draw in draws.items():
        if "bias" in name:
            assert (draw == 0.7).all()
            continue
        values = draw.detach().flatten(1)
        assert torch.allclose(values[values != 0], torch.tensor(1.0))  # 0.7 / (1 − p)
        kept.append(values != 0)
    each_by_itself(torch.cat(kept, dim=1).long(), (p, 1 - p))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(5, 4), (3, 5)),
        (nn.Conv1d(4, 6, 3), (2, 4, 8)),
        (nn.Conv2d(4, 6, 3), (2, 4, 5, 5)),
        (nn.Conv2d(4, 6, 3, groups=2), (2, 4, 5, 5)),
        (nn.Conv2d(4, 8, 3, groups=4), (2, 4, 5, 5)),  # depthwise
        (nn.Conv3d(2, 3, 2), (2, 2, 3, 3, 3)),
        (nn.ConvTranspose1d(4, 6, 3), (2, 4, 5)),
        (nn.ConvTranspose2d(4, 6, 3), (2, 4, 5, 5)),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 5, 5)),
    ],
    ids=repr,
)
def test_dropout_of_an_input_unit_is_dropping_that_input(module: nn.Module, shape: tuple[int, ...]) -> None:
    """Zeros in the weights do what zeros in the input would: `nn.Dropout` on the layer's input, bias untouched."""
    p, x = 0.4, torch.randn(shape)
    model = byov.bayesianize(module, byov.Dropout(p)).eval()
    seen = set()
    for seed in range(8):
        noise = model.noise(seeded(seed))
        keep = noise[0]["keep"]
        assert keep.shape == (shape[1],)
        seen.add(tuple(keep.tolist()))
        dropped = x * (keep / (1 - p)).view(1, -1, *(1 for _ in shape[2:]))
        with model.draw(noise=noise):
            torch.testing.assert_close(model(x), module(dropped), rtol=1e-4, atol=1e-5)
    assert len(seen) > 1


def test_dropout_never_drops_a_bias_and_drops_units_independently() -> None:
    n, p = 2000, 0.25
    draws = byov.bayesianize(small(1.0), byov.Dropout(p)).sample(n, seeded())
    assert all((draw == 1).all() for name, draw in draws.items() if "bias" in name)
    for weight in (draws["0.weight"], draws["2.weight"]):
        assert (weight == weight[:, :1]).all()  # every output loses the same inputs
    z = torch.cat([draws["0.weight"][:, 0], draws["1.weight"], draws["2.weight"][:, 0]], dim=1).ne(0).long()
    each_by_itself(z, (p, 1 - p))


# Buffers


def test_an_ensemble_keeps_batchnorm_s_statistics_apart() -> None:
    """Each component has running statistics of its own; a train step moves those of the component it drew, only."""
    net = small()
    model = byov.bayesianize(net, byov.Ensemble(3))
    shake(model)
    x = torch.randn(8, 2) + 1
    for drawn in (1, 1, 2):
        before = {name: b.clone() for name, b in model.factors[0].named_buffers()}
        with model.draw(noise=[{"z": torch.tensor([drawn])}]):
            model(x)
        for name, buffer in model.factors[0].named_buffers():
            moved = [k for k in range(3) if not torch.equal(buffer[k], before[name][k])]
            assert moved == [drawn], name
    assert dict(model.factors[0].named_buffers())["1/num_batches_tracked"].tolist() == [0, 2, 1]
    assert model.point_state_dict()["1.num_batches_tracked"].item() == 1
    statistics = dict(model.factors[0].named_buffers())["1/running_mean"]
    torch.testing.assert_close(model.point_state_dict()["1.running_mean"], statistics.mean(0))


def test_an_ensemble_of_some_layers_owns_the_buffers_of_those_layers() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    model = byov.bayesianize(net, {"1.*": byov.Ensemble(2)})
    assert set(model.factors[0].buffer_names) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert "3.running_mean" in dict(model.net.named_buffers())
    assert "1.running_mean" not in dict(model.net.named_buffers())


def test_float64_statistics_are_averaged_in_float64() -> None:
    model = byov.bayesianize(small().double(), byov.Ensemble(3, probs=PROBS))
    stack = dict(model.factors[0].named_buffers())["1/running_mean"]
    stack.copy_(torch.randn_like(stack))
    expected = torch.einsum("k,kc->c", torch.tensor(PROBS, dtype=torch.float64), stack)
    torch.testing.assert_close(model.point_state_dict()["1.running_mean"], expected, rtol=1e-14, atol=1e-14)


# Moments

SPREAD: list[Family] = [
    byov.Gaussian(-2.0),
    *[kind(3, probs=PROBS) for kind in KINDS],
    *[kind(2, sigma=0.3) for kind in KINDS],
    *[kind(p, sigma=sigma) for kind in DROPPING for p, sigma in ((0.0, 0.0), (0.3, 0.0), (0.3, 0.2))],
]


@pytest.mark.parametrize("family", SPREAD, ids=repr)
def test_mean_and_std_are_those_of_the_draws(family: Family) -> None:
    """Within 4.5 standard errors for each of the 26 weights (p < 0.001 over all of them)."""
    model, n = byov.bayesianize(small(), family), 1500
    shake(model, 0.5)
    draws, mean, std = model.sample(n, seeded()), model.mean(), model.std()
    for name in model.covered():
        theta, mu, sigma = draws[name].detach().double(), mean[name].detach(), std[name].detach()
        assert ((theta.mean(0) - mu).abs() <= 4.5 * sigma / n**0.5 + 1e-5).all(), name
        squares = (theta - mu) ** 2
        assert ((squares.mean(0) - sigma**2).abs() <= 4.5 * squares.std(0) / n**0.5 + 1e-5).all(), name


@pytest.mark.parametrize("kind", KINDS)
def test_sigma_adds_normal_noise_of_that_size(kind: type[byov.EMP]) -> None:
    net = small()
    draws = byov.bayesianize(net, kind(2, sigma=0.3, spread=0.0)).sample(1000, seeded())  # the components are equal
    noise = torch.cat([(draws[n] - p).flatten(1) for n, p in net.named_parameters()], dim=1).detach() / 0.3
    assert stats.kstest(noise.flatten().numpy(), "norm").pvalue > 0.001
    correlation = torch.corrcoef(noise.T) - torch.eye(noise.shape[1])
    assert correlation.abs().max() < 5 / 1000**0.5


# Where components start


def test_resets_start_apart() -> None:
    net = small()
    reset = byov.bayesianize(net, byov.Ensemble(3, start="reset"))
    components = reset.factors[0].layout.split(reset.factors[0].components)["0.weight"]
    assert torch.equal(components[0], net.get_parameter("0.weight"))
    assert not torch.equal(components[1], components[0])
    assert not torch.equal(components[1], components[2])
    assert components.abs().max() <= 1 / 2**0.5  # nn.Linear's own bounds, 1/√in


def test_spread_moves_the_components_apart_and_not_their_mean() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(50, 40), nn.BatchNorm1d(40))
    model = byov.bayesianize(net, byov.ECMP(5, spread=0.3))
    for name, mean in model.mean().items():
        torch.testing.assert_close(mean, net.get_parameter(name).data, rtol=1e-5, atol=1e-6)
    components = model.factors[0].layout.split(model.factors[0].get_parameter("components").detach())
    weight = components["0.weight"] / net.get_parameter("0.weight").data - 1.0  # ε less its mean over five
    assert float(weight.var(0, correction=1).mean()) == pytest.approx(0.3**2, rel=0.05)
    assert float(components["1.weight"].std()) == pytest.approx(0.3 * (4 / 5) ** 0.5, rel=0.2)
    assert torch.equal(components["1.bias"], torch.zeros(5, 40))  # of nothing, a share is nothing


@pytest.mark.parametrize("kind", KINDS)
def test_unless_told_components_start_apart_by_a_share_that_fits_the_depth(kind: type[byov.EMP]) -> None:
    net = nn.Sequential(*(nn.Linear(40, 40) for _ in range(4)))
    torch.manual_seed(0)
    model = byov.bayesianize(net, kind(5))
    stds = torch.cat([(std / net.get_parameter(n).abs()).flatten() for n, std in model.std().items()]).detach()
    assert float(stds.square().mean()) == pytest.approx(4 / 5 * 0.8**2 / 4, rel=0.05)  # five about their own mean
    for name, mean in model.mean().items():
        torch.testing.assert_close(mean, net.get_parameter(name), rtol=1e-4, atol=1e-6)
    for given in (kind(5, spread=0.0), kind(5, spread=0.0, start="reset")):
        first = byov.bayesianize(net, given).factors[0].get_parameter("components")[0]
        assert torch.equal(first, torch.cat([p.flatten() for p in net.parameters()]))
    other = byov.bayesianize(net, kind(5, spread=0.1))
    other.load_state_dict(model.state_dict())  # how far apart they started is not what a state depends on


# Equation (6)


@pytest.mark.parametrize("probs", [None, PROBS])
@pytest.mark.parametrize("kind", KINDS)
def test_equation_6_by_brute_force(kind: type, probs: tuple[float, ...] | None) -> None:
    model = byov.bayesianize(small(), kind(3, probs=probs))
    shake(model, 0.5)
    mean = {name: torch.randn_like(m) for name, m in model.mean().items()}
    std = {name: torch.rand_like(m) + 0.5 for name, m in model.mean().items()}
    stacks = model.factors[0].layout.split(model.factors[0].components.detach().double())
    numbers = [{name: torch.full_like(m, value) for name, m in mean.items()} for value in (0.2, 0.7)]
    for prior, (m, s) in ((byov.Normal(0.2, 0.7), numbers), (byov.Normal(mean, std), [mean, std])):
        total = 0.0
        for k, p in enumerate(probs or (1 / 3,) * 3):
            for name, stack in stacks.items():
                lists = (t.flatten().tolist() for t in (stack[k], m[name], s[name]))
                for centroid, at, width in zip(*lists, strict=True):
                    total += p * (centroid - at) ** 2 / (2 * width**2)
        assert model.kl(prior).item() == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("kind", DROPPING)
def test_equation_6_for_a_zero_component(kind: type) -> None:
    """Components M = mean/(1−p) and 0 with probabilities 1−p and p; a bias has one component."""
    p, m, s = 0.3, 0.2, 0.7
    model = byov.bayesianize(small(), kind(p))
    total = 0.0
    for name, mean in model.mean().items():
        for value in mean.flatten().tolist():
            if "bias" in name:
                total += (value - m) ** 2 / (2 * s**2)
            else:
                total += ((1 - p) * (value / (1 - p) - m) ** 2 + p * (0 - m) ** 2) / (2 * s**2)
    assert model.kl(byov.Normal(m, s)).item() == pytest.approx(total, rel=1e-6)


# Bad input

SIGMAS = [({"sigma": sigma}, " needs a σ of at least 0") for sigma in (-0.1, float("nan"), float("inf"), None)]
COMPONENTS: list[tuple[dict[str, Any], str]] = [
    *[({"k": k}, " needs at least 2 components, not k=") for k in (1, 0, -3, 2.5, True)],
    ({"probs": (0.5, 0.6)}, " needs mixing probabilities above 0 that sum to 1"),
    ({"probs": (1.0, 0.0)}, " needs mixing probabilities above 0 that sum to 1"),
    ({"k": 3, "probs": (0.5, 0.5)}, r"\(3\) needs 3 mixing probabilities, not 2"),
    ({"start": "random"}, " starts from 'copy' or 'reset', not 'random'"),
    *[({"spread": spread}, " needs a spread of at least 0") for spread in (-0.1, float("inf"), float("nan"))],
]
DROPS = [({"p": p}, r" needs a probability of dropping in \[0, 1\)") for p in (1.0, 1.5, -0.1, float("nan"), "a")]


@pytest.mark.parametrize(
    ("kind", "arguments", "sentence"),
    [(kind, *case) for kind in KINDS for case in (*COMPONENTS, *SIGMAS)]
    + [(kind, *case) for kind in DROPPING for case in (*DROPS, *SIGMAS)]
    + [
        (byov.Ensemble, {"k": 3, "zero": True}, " has no component at zero"),
        (byov.EMP, {"learn_probs": True, "zero": True}, ".* has fixed probabilities"),
    ],
)
def test_bad_mixtures_are_refused_in_a_sentence(kind: type, arguments: dict[str, Any], sentence: str) -> None:
    usual: dict[str, Any] = {"p": 0.1} if kind in DROPPING else {"k": 2}
    with pytest.raises(ValueError, match=f"{kind.__name__}{sentence}"):
        kind(**{**usual, **arguments})


def test_families_are_frozen_and_equal_by_value() -> None:
    assert byov.EMP(3, probs=[0.5, 0.3, 0.2]) == byov.EMP(3, probs=PROBS)
    assert len({byov.EMP(3), byov.EMP(3), byov.ECMP(3)}) == 2
    with pytest.raises(AttributeError):
        byov.EMP(3).k = 4


# A component at zero


@pytest.mark.parametrize("kind", [byov.EMP, byov.ECMP])
def test_a_component_stays_at_zero(kind: Any) -> None:
    """D.1: one of the components restricted to zero; the others are learned, and the mean is the network's weights."""
    family = kind(3, PROBS, zero=True, spread=0.5)
    net = small()
    shake(net)
    model = byov.bayesianize(net, family)
    components = model.factors[0].get_parameter("components")
    assert components.shape == (2, sum(p.numel() for p in net.parameters()))
    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(model.factors[0].flat_mean(), flat)
    centroids = torch.cat([components.detach() / (1 - PROBS[2]), torch.zeros_like(flat)[None]])
    draws = torch.cat([d.detach().flatten(1) for d in model.sample(3000, seeded()).values()], 1)
    of = (draws[:, None] - centroids).abs().argmin(1)
    assert ((draws - centroids.gather(0, of)).abs() < 1e-6).all()
    assert fits(of[:, 0], PROBS) > 0.001
    assert set(of[draws == 0].tolist()) <= {2}
    quadratic = 0.5 * sum(p * (c - 0.1).square().sum() for p, c in zip(PROBS, centroids, strict=True)) / 0.7**2
    torch.testing.assert_close(model.kl(byov.Normal(0.1, 0.7)), quadratic)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.randn(8, 2)).square().sum().backward()
    optimizer.step()
    assert (torch.cat([d.detach().flatten(1) for d in model.sample(200, seeded()).values()], 1) == 0).any()
    assert repr(family) != repr(kind(3, PROBS))
    assert repr(kind(3, PROBS)) == f"{kind.__name__}(k=3, probs={PROBS}, sigma=0.0, start='copy')"  # as it was


# Where the cells of an assignment lie


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
