"""Which parameters a family covers, and how many there are to learn."""

from typing import Any

import pytest
import timm
import torch
from small_networks import Tied
from torch import nn
from torchvision.models import resnet18

import byov


def net() -> nn.Sequential:
    blocks = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    return nn.Sequential(nn.Linear(2, 2), blocks, nn.LayerNorm(2), nn.Linear(2, 3))


NAMES = [name for name, _ in net().named_parameters()]


def covered(model: byov.BayesianModule) -> dict[str, Any]:
    return {slot.name: factor.family for factor in model.factors for slot in factor.layout.slots}


def test_globs_classes_tuples_and_predicates() -> None:
    for rule, names in (
        ("1.*", ["1.0.weight", "1.0.bias", "1.1.weight", "1.1.bias"]),
        ("*.bias", [n for n in NAMES if n.endswith("bias")]),
        (nn.BatchNorm1d, ["1.1.weight", "1.1.bias"]),
        ((nn.BatchNorm1d, nn.LayerNorm), ["1.1.weight", "1.1.bias", "2.weight", "2.bias"]),
        (byov.norm_layers, ["1.1.weight", "1.1.bias", "2.weight", "2.bias"]),
        (byov.output_layer, ["3.weight", "3.bias"]),
        (byov.input_layer, ["0.weight", "0.bias"]),
        (lambda name, module, parameter: parameter.shape == (3,), ["3.bias"]),
        (lambda name, module, parameter: isinstance(module, nn.Linear) and "0" in name, NAMES[:4]),
    ):
        model = byov.bayesianize(net(), {rule: byov.Gaussian()})
        assert model.covered() == names
        assert [name for name, _ in model.points()] == [name for name in NAMES if name not in names]
        model(torch.randn(4, 2)).square().sum().backward()
        assert all(point.grad is not None for _, point in model.points())


def test_the_first_match_wins() -> None:
    rules = {"[23].*": -1.0, "1.1.*": -2.0, "?.weight": -3.0, "*.bias": -4.0, "3.*": -5.0}
    model = byov.bayesianize(net(), {rule: byov.Gaussian(log_var) for rule, log_var in rules.items()})
    found = {name: family.log_var for name, family in covered(model).items()}
    expected = [-3.0, -4.0, None, -4.0, -2.0, -2.0, -1.0, -1.0, -1.0, -1.0]  # None: 1.0.weight stays a point
    assert [found.get(name) for name in NAMES] == expected
    assert [name for name, _ in model.points()] == ["1.0.weight"]


def test_families_mix_and_equal_ones_share_a_factor() -> None:
    rules = {byov.norm_layers: byov.EMP(5), "0.*": byov.Dropout(0.005), nn.Linear: byov.Dropout(0.005)}
    model = byov.bayesianize(net(), rules)
    by_name = covered(model)
    assert len(model.factors) == 2
    assert by_name["2.weight"] == by_name["1.1.bias"] == byov.EMP(5)
    assert by_name["0.weight"] == by_name["3.bias"] == byov.Dropout(0.005)
    model(torch.randn(4, 2)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("rule", ["embed.*", "out.weight", nn.Embedding])
def test_a_tied_parameter_matches_by_any_of_its_names(rule: Any) -> None:
    model = byov.bayesianize(Tied(), {rule: byov.Gaussian()})
    assert model.covered() == ["embed.weight"]
    tensors = model.tensors()
    assert tensors["out.weight"] is tensors["embed.weight"]


def test_frozen_parameters_stay_points_unless_a_rule_names_them() -> None:
    frozen = net()
    frozen[0].requires_grad_(False)
    model = byov.bayesianize(frozen, byov.Gaussian())
    assert [name for name, _ in model.points()] == ["0.weight", "0.bias"]
    assert all(not p.requires_grad for _, p in model.points())
    model(torch.randn(4, 2)).sum().backward()
    assert all(p.grad is None for _, p in model.points())
    assert byov.bayesianize(frozen, {"*": byov.Gaussian()}).covered() == NAMES
    assert byov.bayesianize(frozen, {"0.*": byov.Gaussian()}).covered() == NAMES[:2]


def test_norm_layers_of_a_timm_network() -> None:
    encoder = timm.create_model("convnext_atto", num_classes=3)
    names = byov.bayesianize(encoder, {byov.norm_layers: byov.Gaussian()}).covered()
    assert names == [
        n for n, _ in encoder.named_parameters() if "norm" in n or n.startswith("stem.1.") or ".downsample.0." in n
    ]


# Bad input


def test_bad_rules_are_refused_in_a_sentence_and_change_nothing() -> None:
    plain = net()
    before = {k: v.clone() for k, v in plain.state_dict().items()}
    family = byov.Gaussian()
    cases: list[tuple[Any, str]] = [
        ({"1.0.wieght": family}, r"No parameter matches the rule '1\.0\.wieght'; the nearest names are 1\.0\.weight, "),
        ({"*": family, "head.*": family}, r"No parameter matches the rule 'head\.\*'; the nearest names are "),
        ({nn.Conv2d: family}, "No parameter matches the rule Conv2d; the layers with parameters are .*Linear"),
        ({(lambda n, m, p: False): family}, "No parameter matches the rule"),
        ({}, "The rules are empty"),
        (byov.Gaussian, "A rule needs a family"),
        ({"*": byov.Gaussian}, "A rule needs a family"),
        ({"*": None}, "A rule needs a family"),
        (None, r"A rule needs a family such as byov\.Gaussian\(\) or byov\.EMP\(5\), not None"),
        ({3: family}, "A rule is a glob, a module class or a predicate .* not 3"),
        ({int: family}, "A rule is a glob, a module class or a predicate"),
        ({(): family}, "A rule is a glob, a module class or a predicate"),
    ]
    for rules, sentence in cases:
        with pytest.raises(ValueError, match=sentence):
            byov.bayesianize(plain, rules)
    assert all(torch.equal(before[k], v) for k, v in plain.state_dict().items())
    assert [n for n, _ in plain.named_parameters()] == NAMES


def whole_numbers() -> nn.Module:
    net = nn.Module()
    net.index = nn.Parameter(torch.arange(3), requires_grad=False)
    return net


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: 3, r"takes a torch\.nn\.Module, not int"),
        (nn.ReLU, "ReLU has no parameters"),
        (lambda: byov.bayesianize(net(), byov.Gaussian()), "already has a posterior"),
        (lambda: nn.LazyLinear(3), "lazy parameters"),
        (lambda: net().requires_grad_(False), "Every parameter of the network is frozen"),
        (whole_numbers, r"index is torch\.int64: a posterior needs real floating-point weights"),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()), "would cover parameters of several dtypes"),
    ],
)
def test_bad_networks_are_refused_in_a_sentence(make: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        byov.bayesianize(make(), {"*": byov.Gaussian()} if make is whole_numbers else byov.Gaussian())


def test_two_dtypes_may_have_a_factor_each() -> None:
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    model = byov.bayesianize(mixed, {"0.*": byov.Gaussian(-10), "1.*": byov.Gaussian(-9)})
    assert model.mean()["0.weight"].dtype == torch.float32
    assert model.mean()["1.weight"].dtype == torch.float64
    assert torch.isfinite(model.kl())


def test_the_output_layer_is_a_rule_and_not_a_function() -> None:
    for rule in (byov.output_layer, byov.input_layer):
        with pytest.raises(TypeError, match=rf"{rule} depends .*: pass it to bayesianize as a rule"):
            rule("a", nn.Linear(1, 1), torch.zeros(1))
    with pytest.raises(ValueError, match=r"No parameter matches the rule byov\.output_layer"):
        byov.bayesianize(nn.LayerNorm(3), {byov.output_layer: byov.Gaussian()})


def test_without_rules_a_network_gets_what_is_recommended() -> None:
    gaussian = byov.Gaussian(relative=0.05)
    for model in (byov.bayesianize(net()), byov.bayesianize(net(), "scratch")):
        assert covered(model) == dict.fromkeys(NAMES, gaussian)
    assert covered(byov.bayesianize(net(), "pretrained")) == dict.fromkeys(("3.weight", "3.bias"), gaussian)
    with pytest.raises(ValueError, match=r"A glob needs a family: use \{'\*.weight': byov.Gaussian\(\)\}"):
        byov.bayesianize(net(), "*.weight")
    with pytest.raises(ValueError, match="'scratch' and 'pretrained', not for 'finetune'"):
        byov.bayesianize(net(), "finetune")


@pytest.mark.parametrize(
    ("make", "overhead"),
    [
        # (K−1)((I₁+1)O₁ + (I_L+1)O_L), and of convolutions without biases (K−1)(k₁²I₁O₁ + …) with a linear output layer
        (lambda: nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 4), nn.Linear(4, 3)), (7 + 1) * 5 + (4 + 1) * 3),
        (lambda: resnet18(num_classes=10), 7**2 * 3 * 64 + (512 + 1) * 10),
        (lambda: timm.create_model("resnet18", num_classes=10), 7**2 * 3 * 64 + (512 + 1) * 10),
        (lambda: timm.create_model("convnext_atto", num_classes=10), (4**2 * 3 + 1) * 40 + (320 + 1) * 10),
        (lambda: timm.create_model("vit_tiny_patch16_224", num_classes=10), (16**2 * 3 + 1) * 192 + (192 + 1) * 10),
        (lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)), 9 * 4 + (4 + 1) * 2),
    ],
)
def test_input_and_output_layers_cost_what_section_3_3_says(make: Any, overhead: int) -> None:
    net = make()
    model = byov.bayesianize(net, {byov.input_layer: byov.EMP(5), byov.output_layer: byov.EMP(5)})
    before, after = (sum(p.numel() for p in m.parameters()) for m in (net, model))
    assert after - before == (5 - 1) * overhead
