"""What the patching paper asks of training: its penalty, its baselines, coordinate descent, families that mix."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from digits_runs import arguments, built, digits, moved, posterior, recipe
from saved_runs import differences, log, state
from torch import Tensor, nn

import byov
from byov.posterior import BayesianModule
from byov.train.batchnorm import add_gates, gates
from byov.train.config import load_config
from byov.train.posterior_config import FamilyConfig, L2Config
from byov.train.supervised import PenalisedTask, Supervised, restore, start

ROOT = Path(__file__).parents[2]
NORM = ("posterior.family=emp", "posterior.on=norm")
STEP = "train.minutes=1e-9"
"""A run of one step."""

# The penalty


@pytest.mark.parametrize("family", ["none", "emp", "ecmp", "ensemble", "dropout"])
def test_the_l2_penalty_is_appendix_c1_by_hand(family: str) -> None:
    """λ₁ … λ₄ on weights and biases, patched and shared; no ½, no p, the batch's size in the denominator."""
    numbers = {"patched_weights": 0.2, "patched_biases": 0.3, "shared_weights": 0.5, "shared_biases": 0.7}
    where = [f"posterior.l2.{name}={value}" for name, value in numbers.items()]
    module = moved(f"posterior.family={family}", "posterior.on=norm+output", "posterior.penalty=l2", *where)
    total, net = 0.0, module.net
    patched: dict[str, Tensor] = {}
    if isinstance(net, BayesianModule):
        roles = net.factors[0].roles
        patched = net.factors[0].layout.split(roles.get("components", roles.get("mean")))  # type: ignore[arg-type]
        assert set(patched) == {"2.weight", "2.bias", "4.weight", "4.bias"}
    for kind, tensors in (("patched", patched), ("shared", dict((getattr(net, "net", net)).named_parameters()))):
        for name, tensor in tensors.items():
            role = "biases" if name.endswith("bias") else "weights"
            total += numbers[f"{kind}_{role}"] * float((tensor.detach().double() ** 2).sum())
    assert float(module.penalty(torch.zeros(()))) == pytest.approx(total / 128, rel=1e-5)
    alike = L2Config()
    every = sum(float((p.detach().double() ** 2).sum()) for p in net.parameters())
    assert float(alike.penalty(net)) == pytest.approx(1e-3 * every, rel=1e-5)
    assert float(L2Config(0.0, 0.0, 0.0, 0.0).penalty(net)) == 0.0


def test_the_l2_penalty_is_not_annealed(tmp_path: Path) -> None:
    """β belongs to the KL; with it, the first step would have no penalty."""
    start(recipe(*NORM, "posterior.penalty=l2", STEP), tmp_path)
    line = log(tmp_path)[0]
    assert line["kl"] > 0
    assert line["loss"] == pytest.approx(line["cross_entropy"] + line["kl"], rel=1e-6)


@pytest.mark.parametrize("family", ["none", "emp", "dropout"])
def test_points_make_it_equation_6_in_full(family: str) -> None:
    """Σ p_k‖M_k‖²/2s² over patches and ‖M‖²/2s² over what is shared, over N; alike for a plain network."""
    module = moved(
        f"posterior.family={family}", "posterior.on=norm", "posterior.points=true", "posterior.prior_std=0.5"
    )
    net, total = module.net, 0.0
    if family == "emp":
        assert isinstance(net, BayesianModule)
        total += float((net.factors[0].roles["components"].detach() ** 2).sum()) / 3
    if family == "dropout":
        means = net.mean()  # type: ignore[operator]
        total += float((means["2.weight"].detach() ** 2).sum()) / (1 - 0.05) + float((means["2.bias"] ** 2).sum())
    total += sum(float((p.detach() ** 2).sum()) for p in getattr(net, "net", net).parameters())
    assert float(module.penalty(torch.zeros(()))) == pytest.approx(total / (2 * 0.25) / 1347, rel=1e-5)


# Coordinate descent


def test_phases_alternate_and_resume_to_the_bit(tmp_path: Path) -> None:
    """Three steps on what is shared, three on the patches: the other half, and Adam's state of it, stand still."""
    words = ("posterior.family=ecmp", "posterior.on=norm+output", "posterior.alternate=3", "train.optimizer=adam")
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    assert start(recipe(*words), whole)
    states = [built(*words).state_dict()]
    for step in range(6):  # a step each time, then to the end
        start(recipe(*words, STEP), pieces, resume=step > 0)
        states.append(state(pieces)["module"])
    begin, after, later = states[::3]
    patches, shared = "net.q.0.components", "net.net.1.weight"
    assert torch.equal(after[patches], begin[patches])
    assert not torch.equal(after[shared], begin[shared])
    assert not torch.equal(later[patches], after[patches])
    assert torch.equal(later[shared], after[shared])
    assert start(recipe(*words), pieces, resume=True)
    assert differences(state(whole), state(pieces)) == []


def change(run: Path, *settings: str) -> dict[str, Tensor]:
    """How far one step of plain SGD on EMP's patches moves everything, by name."""
    words = (*NORM, "train.optimizer=sgd", "train.momentum=0.0", "train.warmup=0")
    begin = built(*words).state_dict()
    start(recipe(*words, *settings, STEP), run)
    return {name: value - begin[name] for name, value in state(run)["module"].items() if "num_" not in name}


def test_gain_is_a_learning_rate_for_the_patches(tmp_path: Path) -> None:
    """One step of plain SGD moves them `gain` times as far, and what is shared as far as ever."""
    one, four = (change(tmp_path / str(gain), f"posterior.gain={gain}") for gain in (1.0, 4.0))
    torch.testing.assert_close(four["net.q.0.components"], 4 * one["net.q.0.components"], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(four["net.net.1.weight"], one["net.net.1.weight"])
    assert float(one["net.q.0.components"].abs().max()) > 0


@pytest.mark.parametrize("apart", [0.0, 2.0])
def test_apart_is_a_learning_rate_for_what_tells_patches_from_their_mean(apart: float, tmp_path: Path) -> None:
    """One step of plain SGD moves their mean as `gain` says and each away from it as `apart` says."""
    plain = change(tmp_path / "plain")["net.q.0.components"]
    found = change(tmp_path / "apart", "posterior.gain=4", f"posterior.apart={apart}")["net.q.0.components"]
    mean = plain.mean(0)
    assert float(mean.abs().max()) > 0
    torch.testing.assert_close(found, 4 * mean + apart * (plain - mean), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("words", ["family=none", "family=dropout on=before-norm", "family=dropconnect on=all"])
def test_a_recipe_for_patches_is_one_for_its_baselines(words: str, tmp_path: Path) -> None:
    """As the recipes' own comments say; what only patches have (k, spread, apart) is left unused."""
    changes = [f"posterior.{word}" for word in words.split()]
    for name in ("cifar100_paper", "cifar100_resnet18"):
        chosen = load_config(Supervised, ROOT / "recipes" / f"{name}.toml", changes).posterior
        assert chosen.apart is not None
        assert not chosen.components
    patched = recipe(*changes, "posterior.apart=0.2", "posterior.spread=0.6", STEP)
    assert {"posterior.spread", "posterior.apart"} <= set(patched.posterior.unused())
    assert not start(patched, tmp_path)
    assert (tmp_path / "checkpoint.safetensors").exists()


def test_settings_that_no_family_takes_are_named(call: Any, tmp_path: Path) -> None:
    mixed = FamilyConfig(family="emp", output_family="dropout", on="norm", p=0.3, log_var=-5.0)
    assert mixed.unused() == ["posterior.log_var"]
    status, _, err = call(*arguments(tmp_path / "run", "posterior.family=emp", "posterior.log_var=-5", STEP))
    assert status == 0
    assert "Not used by posterior.family = emp: posterior.log_var, posterior.p." in err.splitlines()


# Dropout before every BatchNorm


def test_a_gate_drops_what_goes_into_the_norm() -> None:
    """A channel with a closed gate enters the BatchNorm as zeros, the others as x/(1 − p); statistics see it."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 3, 3), nn.BatchNorm2d(3))
    twin = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 3, 3), nn.BatchNorm2d(3))
    twin.load_state_dict(plain.state_dict())
    p = 0.4
    model = byov.bayesianize(add_gates(plain), {gates: byov.Dropout(p)})
    assert model.covered() == ["1.gate", "4.gate"]
    x = torch.randn(5, 2, 8, 8)
    for seed in range(4):
        noise = model.noise(torch.Generator().manual_seed(seed))
        keep = noise[0]["keep"] / (1 - p)
        assert len(keep) == 9
        for training in (True, False):
            model.train(training), twin.train(training)
            with model.draw(noise=noise):
                out = model(x)
            h = twin[2](twin[1](twin[0](x) * keep[:6].view(1, -1, 1, 1)))
            torch.testing.assert_close(out, twin[4](twin[3](h) * keep[6:].view(1, -1, 1, 1)), rtol=1e-4, atol=1e-5)
    assert torch.equal(model.net.get_buffer("1.running_mean"), twin.get_buffer("1.running_mean"))


def test_before_norm_is_trained_and_restored_and_its_gates_are_not_learned(tmp_path: Path) -> None:
    words = ("posterior.family=dropout", "posterior.on=before-norm", "posterior.p=0.1")
    assert start(recipe(*words), tmp_path)
    net = posterior(restore(tmp_path)[0])
    assert torch.equal(net.mean()["2.gate"], torch.ones(32))
    assert not any(p.requires_grad for p in net.q.parameters())
    assert net.sample(20)["2.gate"].unique().tolist() == [0.0, pytest.approx(1 / 0.9)]
    images, labels = digits()
    with torch.no_grad():
        assert (net(images).argmax(1) == labels).float().mean() > 0.8


def test_a_network_without_batchnorm_has_no_such_place() -> None:
    with pytest.raises(ValueError, match="no BatchNorm to put dropout before"):
        add_gates(nn.Linear(2, 2))


# Families


def test_only_the_family_asked_for_is_built() -> None:
    """A Gaussian has no components, and two are not asked of it."""
    assert FamilyConfig(family="gaussian", k=1, log_var=-10.0).rules() == byov.Gaussian(-10.0)
    assert FamilyConfig(family="emp", p=2.0).rules() == byov.EMP(5)
    with pytest.raises(ValueError, match="EMP needs at least 2 components"):
        FamilyConfig(family="emp", k=1)
    with pytest.raises(ValueError, match="probability of dropping"):
        FamilyConfig(family="emp", on="norm", output_family="dropout", p=2.0)


@pytest.mark.parametrize(("output", "kind"), [("ecmp", byov.ECMP), ("dropout", byov.Dropout)])
@pytest.mark.parametrize("on", ["norm", "norm+output", "all"])
def test_the_output_layer_may_have_a_family_of_its_own(output: str, kind: type, on: str) -> None:
    net = posterior(built("posterior.family=emp", f"posterior.on={on}", f"posterior.output_family={output}"))
    covers = {type(f.family): {slot.name for slot in f.layout.slots} for f in net.factors}
    assert covers[kind] == {"4.weight", "4.bias"}
    assert covers[byov.EMP] == {"2.weight", "2.bias"} | ({"1.weight", "1.bias"} if on == "all" else set())


def test_input_zero_and_the_noise_of_shared_layers_come_from_a_recipe(tmp_path: Path) -> None:
    words = ("posterior.family=emp", "posterior.on=input+norm+output", "posterior.zero=true", "posterior.sigma=0.01")
    assert start(recipe(*words), tmp_path)
    net = posterior(restore(tmp_path)[0])
    (factor,) = net.factors
    assert {slot.name.partition(".")[0] for slot in factor.layout.slots} == {"1", "2", "4"}
    assert (len(factor.roles["components"]), factor.family.zero) == (2, True)  # type: ignore[attr-defined]
    words = (*NORM, "posterior.shared_sigma=0.02")
    module = moved(*words, "posterior.penalty=l2", "posterior.l2.shared_weights=0.5", "posterior.l2.shared_biases=0.25")
    patched, shared = module.net.factors  # type: ignore[union-attr]
    assert shared.family == byov.Shared(0.02)
    parts = shared.layout.split(shared.roles["mean"])
    assert set(parts) == {"1.weight", "1.bias", "4.weight", "4.bias"}
    expected = 1e-3 * patched.roles["components"].square().sum()
    expected = expected + sum((0.25 if "bias" in n else 0.5) * p.square().sum() for n, p in parts.items())
    torch.testing.assert_close(module.penalty(torch.ones(())), expected / 128)
    settings = recipe(*words, "posterior.alternate=2")
    task = PenalisedTask(module, "", settings.posterior, settings.train, 1)
    assert [len(task.patched), len(task.shared)] == [1, 1]
    for wrong in ("posterior.family=none", "posterior.on=all"):
        with pytest.raises(ValueError, match="shared_sigma is for weights beside patches"):
            recipe(*words, wrong)


def test_learned_probabilities_are_trained_and_restored(tmp_path: Path) -> None:
    words = ("posterior.family=emp", "posterior.on=norm+output", "posterior.learn_probs=true", "posterior.spread=0.5")
    assert start(recipe(*words), tmp_path)
    net = posterior(restore(tmp_path)[0])
    logits = net.factors[0].get_parameter("logits")
    assert logits.shape == (3, 2)
    assert float(logits.softmax(0).std(0).min()) > 1e-3


def test_a_pretrained_ensemble_keeps_its_weights_and_has_heads_of_its_own(tmp_path: Path) -> None:
    """Every member starts from the pretrained network; the output layer is new, and no two are alike."""
    words = ("posterior.family=ensemble", "model.pretrained=true", STEP)

    def components(*settings: str) -> dict[str, Tensor]:
        factor = posterior(built(*words, *settings)).factors[0]
        return factor.layout.split(factor.roles["components"].detach())

    for name, part in components().items():
        head = name.startswith("4.")
        assert torch.equal(part[0], part[1]) is not head
        assert torch.equal(part[1], part[2]) is not head
    start(recipe(*words), tmp_path)
    restore(tmp_path)
    first = components("posterior.start=reset")["1.weight"]
    assert not torch.equal(first[0], first[1])


def test_the_papers_recipe_has_its_penalty() -> None:
    found = load_config(Supervised, ROOT / "recipes" / "cifar100_paper.toml").posterior
    assert (found.family, found.penalty) == ("ecmp", "l2")
    assert found.l2 == L2Config(1e-3, 1e-3, 1e-3, 1e-3)  # λ = 0.001 / batch


def test_the_python_of_the_document_runs(capsys: Any) -> None:
    """All blocks in order, as a reader would paste them; the ten lines do train, and patches do drift apart."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "patching.md").read_text(), re.M | re.S)
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    for block in blocks:
        exec(compile(block, "docs/patching.md", "exec"), names)
    assert names["prediction"].samples == 100
    assert float(names["loss"]) < 2.4
    assert float(names["model"].std()["5.weight"].mean()) > 0
    assert "torch.Size([64, 10])" in capsys.readouterr().out
