"""The patching paper's Tables 1 and 3, to the last parameter, and the command that prints them."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import byov
from byov.overhead import PLACES, Row, build, overhead


def table(net: nn.Module, k: int = 5, on: str | None = None) -> dict[tuple[str, str], Row]:
    return {(row.family, row.on): row for row in overhead(net, k, on)}


@pytest.mark.parametrize(
    ("name", "plain", "patched", "ensemble", "percent"),
    [
        ("resnet18", 11_689_512, 13_779_912, 58_447_560, "17.9"),
        ("torchvision:resnet18", 11_689_512, 13_779_912, 58_447_560, "17.9"),
        ("timm:resnet18", 11_689_512, 13_779_912, 58_447_560, "17.9"),
        ("pyramidnet", 28_511_307, 28_825_299, 142_556_535, "1.1"),
        ("table3_mlp", 1_009_900, 1_129_100, 5_049_500, "11.8"),
    ],
)
def test_table_3_exactly(name: str, plain: int, patched: int, ensemble: int, percent: str) -> None:
    rows = table(build(name, None))
    assert rows["deterministic", "–"].parameters == plain
    assert rows["Dropout", "all"].parameters == rows["DropConnect", "all"].parameters == plain
    assert rows["EMP", "norm+output"].parameters == rows["ECMP", "norm+output"].parameters == patched
    assert rows["Ensemble", "all"].parameters == ensemble
    assert f"{rows['EMP', 'norm+output'].percent:.3g}" == percent
    assert rows["Gaussian", "all"].overhead == 1.0  # Table 1: mean-field Gaussian, 100 %


def test_effective_ensemble_sizes_are_exact_powers() -> None:
    # L = 100 layers of H = 100 units: K^L, K^(H² + 2(L−1)H), 2^(input units), 2^(LH²), K.
    mlp = table(build("table3_mlp", None))
    assert mlp["EMP", "norm+output"].ensemble_size == "5^100"
    assert mlp["ECMP", "norm+output"].ensemble_size == "5^29,800"
    assert mlp["Dropout", "all"].ensemble_size == "2^19,801"  # 1 + 99·100 inputs of linear layers, 99·100 of BN
    assert mlp["DropConnect", "all"].ensemble_size == "2^1,000,000"
    assert mlp["Ensemble", "all"].ensemble_size == "5"
    assert mlp["Gaussian", "all"].ensemble_size == "∞"
    assert mlp["deterministic", "–"].ensemble_size == "1"
    assert table(build("resnet18", None))["EMP", "norm+output"].ensemble_size == "5^21"  # 20 BN layers and fc


FAMILIES = {
    "Gaussian": lambda k: byov.Gaussian(),
    "Dropout": lambda k: byov.Dropout(0.5),
    "DropConnect": lambda k: byov.DropConnect(0.5),
    "EMP": byov.EMP,
    "ECMP": byov.ECMP,
    "Ensemble": byov.Ensemble,
}


def small_net(which: str) -> nn.Module:
    if which == "tied":
        net = nn.Sequential(nn.Embedding(11, 6), nn.LayerNorm(6), nn.Linear(6, 11))
        net[2].weight = net[0].weight
    else:
        net = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(6, 3))
        net[0].requires_grad_(which != "frozen")
    return net


@settings(max_examples=25, deadline=None)
@given(k=st.integers(2, 7), place=st.sampled_from(PLACES), which=st.sampled_from(["tied", "conv", "frozen"]))
def test_counts_are_those_of_the_models_that_bayesianize_makes(k: int, place: str, which: str) -> None:
    net = small_net(which)
    parts = {"norm": byov.norm_layers, "output": byov.output_layer}
    for name, family in FAMILIES.items():
        rules = family(k) if place == "all" else dict.fromkeys([parts[p] for p in place.split("+")], family(k))
        model = byov.bayesianize(net, rules)
        assert table(net, k, place)[name, place].parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", ["EMP", "ECMP", "Dropout", "DropConnect", "Ensemble"])
def test_effective_size_is_the_number_of_different_draws(name: str) -> None:
    # Small enough to draw them all: at most 16, and the chance to miss one in 800 draws is below 1e-20.
    net = nn.Sequential(nn.Linear(1, 2, bias=name != "ECMP"), nn.Linear(2, 1, bias=False))
    row = table(net, 2, "all")[name, "all"]
    model = byov.bayesianize(net, FAMILIES[name](2))
    for role in model.q.parameters():
        nn.init.uniform_(role, 1.0, 2.0)
    draws = model.sample(800, generator=torch.Generator().manual_seed(1))
    flat = torch.cat([draw.flatten(1) for draw in draws.values()], dim=1)
    assert len(torch.unique(flat, dim=0)) == row.base**row.exponent


def test_a_billion_parameters_take_no_memory() -> None:
    net = build("timm:vit_giant_patch14_dinov2", None)
    rows = table(net)
    assert {p.device.type for p in net.parameters()} == {"meta"}
    assert rows["Ensemble", "all"].parameters == 5 * rows["deterministic", "–"].parameters > 5e9


def test_networks_without_norms_and_networks_that_refuse_meta() -> None:
    rows = table(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    assert rows["EMP", "norm+output"].parameters == 16 + 5 * 10
    assert ("EMP", "norm") not in rows
    assert table(build("torchvision:regnet_y_400mf", 10))["Gaussian", "all"].overhead == 1.0


@pytest.mark.parametrize(
    ("net", "arguments", "message"),
    [
        (nn.Linear(2, 2), {"on": "bias"}, "norm or output, not 'bias'"),
        (nn.Linear(2, 2), {"k": 1}, "at least 2 components"),
        (nn.Linear(2, 2), {"on": "norm"}, "No parameter matches"),
        (nn.LazyLinear(2), {}, "lazy parameters"),
        (nn.ReLU(), {}, "no parameters"),
    ],
)
def test_bad_input_is_told_in_one_sentence(net: nn.Module, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        overhead(net, **arguments)


def test_command_prints_the_table_and_writes_it(call, tmp_path: Path) -> None:
    target = tmp_path / "new" / "table.json"
    status, out, _ = call("overhead", "resnet18", "--json", target)
    assert status == 0
    for cell in ("13,779,912", "17.9 %", "11,727,912", "0.328 %", "58,447,560", "5^21"):
        assert cell in out
    saved = json.loads(target.read_text())
    assert (saved["model"], saved["k"]) == ("resnet18", 5)
    assert [Row(**row) for row in saved["rows"]] == overhead(build("resnet18", None))
    assert call("overhead", "resnet18", "--json", target, "--force")[0] == 0
    ten_classes = f"{11_689_512 - 990 * 513:,}"  # only the output layer changes
    assert ten_classes in call("overhead", "resnet18", "--classes", 10)[1]
