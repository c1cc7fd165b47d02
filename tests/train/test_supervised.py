"""Training with labels: every family in every place learns, resumes to the bit and comes back as it was left."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from digits_runs import arguments, built, digits, moved, network, posterior, recipe, standardised
from PIL import Image
from saved_runs import differences, log, state
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call

from byov.data import CropFlip, ImageSet, load
from byov.data.config import DataConfig
from byov.posterior import BayesianModule
from byov.train import checkpoint
from byov.train.config import load_config
from byov.train.posterior_config import FamilyConfig
from byov.train.supervised import Classifier, FineTune, Supervised, restore, start

FAMILIES = ("gaussian", "dropout", "dropconnect", "ensemble", "emp", "ecmp")
RECIPES = Path(__file__).parents[2] / "recipes"
PLACES = ("all", "norm+output", "norm", "output")


def no_norm(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def no_network(classes: int) -> str:
    return f"{classes} classes"


# Every family in every place


@pytest.mark.parametrize(("family", "on"), [("none", "all"), *((f, on) for f in FAMILIES for on in PLACES)])
def test_a_run_learns_resumes_to_the_bit_and_is_restored(tmp_path: Path, family: str, on: str) -> None:
    """In one piece, and stopped after its first step and taken up again; 10 % is chance."""
    changes = (f"posterior.family={family}", f"posterior.on={on}")
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    assert start(recipe(*changes), whole)
    assert not start(recipe(*changes, "train.minutes=1e-9"), pieces)
    assert checkpoint.peek(pieces / "checkpoint.safetensors")["step"] == 1
    assert start(recipe(*changes), pieces, resume=True)
    assert differences(state(whole), state(pieces)) == []
    lines = log(whole)
    assert [line["loss"] for line in lines] == [line["loss"] for line in log(pieces)]
    assert len(lines) == 20
    losses = [line["cross_entropy"] for line in lines]
    assert sum(losses[-3:]) < 0.6 * sum(losses[:3])

    module, settings = restore(whole)
    assert settings == recipe(*changes, "train.compile=false", "train.precision=32-true")  # what was open, it says
    assert not module.training
    data = load("digits", "train")
    assert module.augment == CropFlip(0, 0.0, data.mean, data.std)  # the images are standardised as they were
    assert differences(state(whole)["module"], dict(module.state_dict())) == []
    net = module.net
    assert isinstance(net, BayesianModule) == (family != "none")
    if isinstance(net, BayesianModule):
        of = {"1": "linear", "2": "norm", "4": "output"}
        wanted = {"linear", "norm", "output"} if on == "all" else set(on.split("+"))
        assert {of[name.partition(".")[0]] for name in net.covered()} == wanted
        assert len(net.factors) == 1  # two rules, one family, one draw
    images, labels = digits()
    with torch.no_grad():
        logits = net(images)
        assert (logits.argmax(1) == labels).float().mean() > 0.7
        # A plain network with the checkpoint's means predicts the same.
        plain = network(10)
        plain.load_state_dict(net.point_state_dict() if isinstance(net, BayesianModule) else net.state_dict())
        torch.testing.assert_close(plain.eval()(images), logits, rtol=1e-4, atol=1e-4)
        assert torch.equal(restore(whole / "checkpoint.safetensors")[0].net(images), logits)


def test_the_recipe_of_the_repository_is_trained_well(tmp_path: Path) -> None:
    short = ["train.epochs=4", "train.warmup=1", "train.accelerator=cpu", "train.devices=1"]
    assert start(load_config(Supervised, RECIPES / "digits_train.toml", short), tmp_path)
    images, labels = digits()
    with torch.no_grad():
        assert (restore(tmp_path)[0].net(images).argmax(1) == labels).float().mean() > 0.9


# The objective


def kl_by_hand(family: str, net: BayesianModule, prior_std: float) -> Tensor:
    """From torch.distributions for the Gaussian, from the paper's equation (6) for the mixtures."""
    roles = net.factors[0].roles
    if family == "gaussian":
        q = Normal(roles["mean"].double(), (0.5 * roles["log_var"].double()).exp())
        return kl_divergence(q, Normal(0.0, prior_std)).sum()
    if family in ("dropout", "dropconnect"):
        means, p = net.mean(), 0.05
        weights = sum((means[name].double() ** 2).sum() for name in means if name.endswith("weight"))
        biases = sum((means[name].double() ** 2).sum() for name in means if name.endswith("bias"))
        return (weights / (1 - p) + biases) / (2 * prior_std**2)
    return (roles["components"].double() ** 2).sum(1).mean() / (2 * prior_std**2)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_is_cross_entropy_and_beta_kl_over_n(family: str) -> None:
    linear = f"model.name=python:{Path(__file__).stem}:no_norm"
    module = moved(f"posterior.family={family}", "posterior.prior_std=0.5", "posterior.sigma=0.01", linear)
    data, net = load("digits", "train"), posterior(module)
    images, labels = data.images[:50], data.labels[:50]  # type: ignore[union-attr, index]
    noise, weight = net.noise(torch.Generator().manual_seed(1)), torch.tensor(0.3)
    with net.draw(noise=noise):
        step = module(images, labels, torch.rand(50, 3), weight)
    logits = functional_call(no_norm(10), net.tensors(noise), standardised(images))
    log_probabilities = logits - logits.exp().sum(1, keepdim=True).log()
    cross_entropy = -log_probabilities[torch.arange(50), labels].mean()
    kl = kl_by_hand(family, net, 0.5) / 1347
    loss = (cross_entropy + 0.3 * kl).float()
    torch.testing.assert_close(step.cross_entropy, cross_entropy, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(step.kl, kl.float(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(step.loss, loss, rtol=1e-4, atol=1e-5)
    learned = [p for p in net.parameters() if p.requires_grad]
    ours, theirs = (torch.autograd.grad(each, learned) for each in (step.loss, loss))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    assert float(step.accuracy) == pytest.approx((logits.argmax(1) == labels).float().mean().item())


def test_beta_follows_its_schedule(tmp_path: Path) -> None:
    betas = (
        "posterior.family=gaussian",
        "posterior.beta_start=0.1",
        "posterior.beta_end=0.5",
        "posterior.beta_schedule=linear",
    )
    start(recipe(*betas, "train.epochs=1"), tmp_path)
    found = [(line["loss"] - line["cross_entropy"]) / line["kl"] for line in log(tmp_path)]
    assert found == pytest.approx([0.1 + 0.4 * k / 10 for k in range(10)], abs=1e-4)


def test_a_run_is_not_resumed_where_auto_has_become_another_n(tmp_path: Path) -> None:
    start(recipe("train.minutes=1e-9"), tmp_path)
    saved = checkpoint.load(tmp_path / "checkpoint.safetensors")
    saved["recipe"]["kl_scale"] = 100.0
    checkpoint.save(tmp_path / "checkpoint.safetensors", saved)
    with pytest.raises(ValueError, match=r"started with N = 100, where this byov takes 1,347"):
        start(recipe(), tmp_path, resume=True)


def test_many_weights_for_each_image_are_paid_for_by_weight() -> None:
    gaussian = FamilyConfig(family="gaussian")
    assert gaussian.number(100, 300) == 100
    assert gaussian.number(100, 301) == pytest.approx(50 * 301)
    assert FamilyConfig(family="emp").number(100, 301) == 100


@pytest.mark.parametrize(
    ("scale", "on", "number"),
    [
        ("dataset", "all", 1347),
        ("auto", "all", 1347),
        ("none", "all", 1),
        ("12.5", "all", 12.5),
        ("parameters", "all", 64 * 32 + 32 + 2 * 32 + 32 * 10 + 10),
        ("parameters", "norm", 2 * 32),
        ("parameters", "norm+output", 2 * 32 + 32 * 10 + 10),
    ],
)
def test_kl_scale_is_what_it_says_and_is_written_down(tmp_path: Path, scale: str, on: str, number: float) -> None:
    kind = "posterior.family=gaussian"
    changes = kind, f"posterior.kl_scale={scale}", f"posterior.on={on}", "train.minutes=1e-9"
    start(recipe(*changes), tmp_path)
    about = checkpoint.peek(tmp_path / "checkpoint.safetensors")["recipe"]
    module, _ = restore(tmp_path)
    assert about["kl_scale"] == module.kl_scale == number
    assert about["data"]["images"] == 1347
    before = posterior(built(*changes))
    assert log(tmp_path)[0]["kl"] == pytest.approx(before.kl().item() / number, rel=1e-5)


def test_an_ensemble_starts_from_different_networks_and_patches_from_one() -> None:
    for family, different in (("ensemble", True), ("emp", False), ("ecmp", False)):
        factor = posterior(built(f"posterior.family={family}", "posterior.spread=0")).factors[0]
        components = factor.layout.split(factor.roles["components"].detach())
        for name in ("1.weight", "1.bias", "4.weight", "4.bias"):
            first, *others = components[name]
            assert [torch.equal(first, other) for other in others] == [not different] * 2


# The images


def test_augmentation_is_asked_for(tmp_path: Path) -> None:
    data = load("digits", "train")
    uniforms = torch.tensor([[0.0, 0.99, 0.1]])
    for augment, plain in (("none", True), ("crop-flip", False)):
        module = built(f"augment={augment}")
        shown = module.augment.render(data.images[:1], uniforms)  # type: ignore[union-attr]
        assert torch.allclose(shown, standardised(data.images[:1]), atol=1e-5) is plain  # type: ignore[index]
    start(recipe("augment=crop-flip", "posterior.family=none", "train.minutes=1e-9"), tmp_path)
    assert restore(tmp_path)[0].augment.padding == 4


def test_the_held_out_part_is_not_trained_on(tmp_path: Path) -> None:
    held = ("data.holdout=0.5", "data.holdout_seed=3", "posterior.kl_scale=dataset", "train.minutes=1e-9")
    start(recipe(*held), tmp_path)
    about = checkpoint.peek(tmp_path / "checkpoint.safetensors")["recipe"]
    kept = DataConfig(holdout=0.5, holdout_seed=3).load()
    assert about["data"]["digest"] == kept.digest
    assert about["data"]["images"] == about["kl_scale"] == len(kept) < 1347


def test_a_folder_of_pictures_is_trained_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for kind, shade in (("dark", 40), ("light", 200)):
        (tmp_path / "pictures" / "train" / kind).mkdir(parents=True)
        for i in range(16):
            pixels = (shade + rng.integers(-30, 30, (8, 8))).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / "train" / kind / f"{i}.png")
    where = (f"data.name=folder:{tmp_path / 'pictures'}", "data.image_size=8", "data.channels=1")
    start(recipe(*where, "train.batch=16", "train.epochs=10", "train.workers=0"), tmp_path / "run")
    assert checkpoint.peek(tmp_path / "run" / "checkpoint.safetensors")["recipe"]["class_names"] == ["dark", "light"]
    assert log(tmp_path / "run")[-1]["accuracy"] == 1.0


# Runs that are not restored, and bad input


def test_a_restored_run_asks_for_no_weights_from_elsewhere(tmp_path: Path) -> None:
    start(recipe("model.name=vit-nano/4", "posterior.family=gaussian", "train.minutes=1e-9"), tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    tree = checkpoint.load(path)
    tree["recipe"]["config"]["model"]["pretrained"] = True
    checkpoint.save(path, tree)
    module, settings = restore(tmp_path)
    assert settings.model.pretrained
    assert isinstance(module, Classifier)
    assert differences(tree["module"], dict(module.state_dict())) == []


def test_bad_input_ends_in_a_sentence_and_changes_nothing(call: Any, tmp_path: Path) -> None:
    run, here = tmp_path / "run", Path(__file__).stem
    np.savez(tmp_path / "bare.npz", train_images=np.zeros((150, 8, 8), np.uint8))
    (tmp_path / "file").write_text("")
    (tmp_path / "odd.toml").write_text("[posterior]\nfamilie = 'emp'\n")
    settings = [
        ("posterior.family=gausian", "posterior.family is 'none' or 'swag' or 'gaussian'"),
        ("posterior.on=everywhere", "posterior.on is 'all' or 'norm+output'"),
        ("posterior.sigm=1", "posterior.sigm"),
        ("posterior.beta_end=-0.1", "is a number of at least 0, not"),
        ("posterior.beta_start=-1", "is a number of at least 0, not"),
        ("posterior.kl_scale=0", "kl_scale must be above 0, not 0.0"),
        ("posterior.kl_scale=images", "posterior.kl_scale is"),
        ("posterior.prior_std=0", "posterior.prior_std is a number above 0"),
        ("posterior.p=1 posterior.family=dropout", "needs a probability of dropping in [0, 1)"),
        ("posterior.family=emp posterior.k=1", "EMP needs at least 2 components"),
        ("posterior.family=emp posterior.spread=-1", "EMP needs a spread of at least 0"),
        ("posterior.family=emp train.batch=1", "has BatchNorm, which needs batches of at least 2 images, not of 1"),
        ("train.batch=4000", "fewer than a batch of 4000"),
        ("posterior.l2.shared_weights=-1", "posterior.l2.shared_weights is a λ of at least 0, not -1.0"),
        ("posterior.l2.patched_biases=nan", "posterior.l2.patched_biases is a number, not 'nan'"),
        ("posterior.family=gaussian posterior.penalty=l2", "does not act on a Gaussian's variance"),
        ("posterior.family=emp posterior.l2.shared_biases=1", "are for posterior.penalty = 'l2', not for 'kl'"),
        ("posterior.family=none posterior.output_family=emp", "set posterior.family, too"),
        ("posterior.output_family=emp", "set posterior.family, too"),
        ("posterior.on=norm", "posterior.on is not for SWAG, which follows all weights"),
        ("posterior.alternate=2", "posterior.alternate is not for SWAG"),
        ("posterior.family=gaussian posterior.on=output posterior.output_family=emp", "is used beside another family"),
        ("posterior.alternate=-1", "posterior.alternate is a number of steps, or 0, not -1"),
        ("posterior.family=gaussian posterior.alternate=2", "the posterior covers the whole network"),
        ("posterior.alternate=2 posterior.family=none", "needs a learned posterior"),
        ("posterior.gain=0", "posterior.gain is above 0"),
        ("posterior.family=emp posterior.apart=-1", "posterior.apart is at least 0"),
        ("posterior.learn_probs=true", "posterior.learn_probs is for ensemble, emp, ecmp, not for swag"),
        ("posterior.family=gaussian posterior.on=before-norm", "is for dropout, not for gaussian"),
        (
            f"posterior.family=gaussian posterior.on=norm model.name=python:{here}:no_norm",
            "No parameter matches the rule",
        ),
        (f"model.name=python:{here}:no_network", "returns str, not a torch.nn.Module"),
        (f"data.name=npz:{tmp_path / 'bare.npz'}", "has no labels: pretrain on it instead"),
        (f"data.name=cifar10 data.root={tmp_path}", "cifar10 is not in"),
    ]
    cases = [(arguments(run, *changes.split()), sentence) for changes, sentence in settings]
    cases += [
        (arguments(tmp_path / "file"), "is a file, and a run needs a folder"),
        (arguments(tmp_path / "file" / "run"), "file is a file, and a run needs a folder"),
        (["train", str(tmp_path / "none.toml"), "--run", str(run)], "There is no recipe at"),
        (["train", str(tmp_path / "odd.toml"), "--run", str(run)], "posterior.familie"),
    ]
    for words, sentence in cases:
        status, _, error = call(*words)
        assert status == 2, words
        assert sentence in error, error
        assert error.startswith("byov: ")
        assert error.count("\n") == 1
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bare.npz", "file", "odd.toml"]


def test_a_run_is_neither_overwritten_nor_changed(call: Any, tmp_path: Path) -> None:
    run, changes = tmp_path / "a [run]", ("posterior.family=emp", "posterior.on=norm+output")
    status, _, error = call(*arguments(run, *changes))
    assert status == 0
    assert "[run]: finished" in " ".join(error.split())
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for words, sentence in (
        (arguments(run, *changes), "holds a run already: resume it with --resume, or choose another --run."),
        (arguments(run, *changes, "posterior.k=4", resume=True), "was started with posterior.k = 3, not 4"),
    ):
        status, _, error = call(*words)
        assert status == 2
        assert sentence in error
        assert files == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


# Between rounds of pruning


IMAGES = ImageSet("eight", torch.arange(512).view(8, 1, 8, 8).byte(), torch.arange(8) % 2, ("a", "b"))


def tune(lr: float, std: float = 0.25) -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 2))
    FineTune(Supervised(), IMAGES, (0.5,), (std,), epochs=3, lr=lr)(net)
    return net


@pytest.mark.parametrize("lr", [0.0, -1.0, float("nan"), float("inf"), 1e38])
def test_a_learning_rate_is_one_that_an_optimizer_can_take(lr: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"a learning rate above 0 and at most 1,000,000, not 3 and {lr}")):
        tune(lr)


def test_weights_that_are_no_numbers_are_not_kept() -> None:
    assert all(bool(p.isfinite().all()) for p in tune(1e-3).parameters())
    with pytest.raises(
        ValueError, match=r"^Fine-tuning diverged with a learning rate of 0\.001: choose a lower one\.$"
    ):
        tune(1e-3, std=1e-45)  # infinite pixels
