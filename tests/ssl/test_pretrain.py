"""Pretraining from a recipe: to the bit the same in pieces, and in two processes as in one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from math import cos, pi
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_runs import differences, log, state
from torch import Tensor, nn

from byov.data import Batches
from byov.data.datasets import ImageSet
from byov.ssl.pretrain import DataConfig, Pretrain, PretrainTask, build, restore, start
from byov.train import checkpoint
from byov.train.config import load_config
from byov.train.loop import Place

HERE = Path(__file__).parent
BYOV_COMMAND = Path(sys.executable).with_name("byov")
SMALL = [  # 4 steps in an epoch, a few milliseconds each
    f"model.encoder=python:{Path(__file__).stem}:encoder",
    "model.hidden=16",
    "model.outputs=8",
    "data.holdout=0.8",
    "train.epochs=2",
    "train.batch=64",
    "train.warmup=0.5",
    "train.log_every=1",
    "train.accelerator=cpu",
    "train.devices=1",
]


def encoder() -> nn.Module:
    """Everything that has a state or takes a chance: convolution, BatchNorm, dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(36, 12),
    )


def steady() -> nn.Module:
    """Without dropout, whose masks are each process's own."""
    net = encoder()
    net[3] = nn.Identity()  # type: ignore[operator]
    return net


def recipe(*changes: str) -> Pretrain:
    return load_config(Pretrain, None, [*SMALL, *changes])


def arguments(run: Path, *changes: str, resume: bool = False) -> list[str]:
    sets = [word for change in (*SMALL, *changes) for word in ("--set", change)]
    return ["pretrain", "--run", str(run), *sets, *(["--resume"] if resume else [])]


VARIANTS = {
    "byol": ["posterior.family=none", "train.optimizer=sgd", "train.weight_decay=1e-4"],
    "byov": ["train.clip=1.0"],
    "lars": ["train.optimizer=lars", "train.weight_decay=1e-4"],
    "accumulated": ["train.accumulate=2", "posterior.prior=teacher-normal", "posterior.beta_schedule=linear"],
    "points": ["posterior.coverage=linear-only", "posterior.prior=teacher-mean", "train.optimizer=sgd"],
    "shared": ["posterior.shared_draw=true", "train.optimizer=adam", "train.precision=bf16-mixed"],
    "patches": ["posterior.family=emp", "train.weight_decay=0.1"],
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_in_pieces_equals_a_run_in_one(tmp_path: Path, variant: str) -> None:
    changes, run = VARIANTS[variant], tmp_path / "pieces"
    assert start(recipe(*changes), tmp_path / "whole")
    assert not start(recipe(*changes, "train.minutes=1e-9"), run)
    assert checkpoint.peek(run / "checkpoint.safetensors")["step"] == 1
    for _ in range(3):  # to the last step of the first epoch, one at a time
        assert not start(recipe(*changes, "train.minutes=1e-9"), run, resume=True)
    assert state(run)["optimizer"]["state"]
    assert start(recipe(*changes), run, resume=True)
    whole, pieces = state(tmp_path / "whole"), state(run)
    assert differences(whole, pieces) == []
    assert whole["step"] == 8
    names = whole["module"].keys()
    assert any("ema.mean" in name for name in names)
    assert any(name.startswith("teacher.") and "running_var" in name for name in names)
    assert any(name.startswith("student.") and "running_var" in name for name in names)
    assert whole["optimizer"] == {}  # a finished run is not continued
    assert start(recipe(*changes), run, resume=True)  # and asking for it changes nothing
    assert differences(whole, state(run)) == []
    assert [line["step"] for line in log(run)] == list(range(1, 9))
    assert [line["loss"] for line in log(run)] == [line["loss"] for line in log(tmp_path / "whole")]


def test_posterior_and_views_are_as_recipe_and_data_have_them() -> None:
    changes = ["posterior.shared_draw=true", "posterior.prior_std=0.5", "posterior.log_var=-6"]
    data = DataConfig(holdout=0.8).load()
    module = build(recipe(*changes), data, 1, torch.device("cpu"))
    assert (module.views.mean, module.views.std) == (data.mean, data.std)
    assert data.mean is not None
    student = module.student
    assert student.shared_draw
    assert student.prior.std.item() == 0.5
    assert student.q[0].family.log_var == -6


def test_training_moves_what_it_should(tmp_path: Path) -> None:
    """Against the start: the means, the variances, the teacher and all running statistics."""
    torch.manual_seed(0)
    before = build(recipe(), DataConfig(holdout=0.8).load(), 1, torch.device("cpu")).state_dict()
    start(recipe(), tmp_path)
    after = state(tmp_path)["module"]
    assert after.keys() == before.keys()
    still = {name for name in before if torch.equal(before[name], after[name])}
    own = {f"teacher.predictor.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert still == {"student._extra_state", "student.prior.mean", "student.prior.std"} | own


def test_the_teacher_follows_the_optimizers_step(tmp_path: Path) -> None:
    changes = ["ssl.tau_base=0.2", "train.warmup=0", "train.lr=0.05", "train.minutes=1e-9"]
    torch.manual_seed(0)
    module = build(recipe(*changes), DataConfig(holdout=0.8).load(), 1, torch.device("cpu"))
    start(recipe(*changes), tmp_path)
    after = state(tmp_path)["module"]
    decay = 1 - (1 - 0.2) * (cos(pi / 8) + 1) / 2
    expected = decay * module.ema.mean(0) + (1 - decay) * after["student.q.0.mean"]
    assert not torch.allclose(after["student.q.0.mean"], module.ema.mean(0), atol=1e-2)
    torch.testing.assert_close(after["ema.mean_0"], expected)


def test_beta_runs_along_its_half_cosine(tmp_path: Path) -> None:
    start(recipe("posterior.log_var=-10", "posterior.beta_end=0.5", "posterior.kl_scale=1000"), tmp_path)
    lines = log(tmp_path)
    betas = [(line["loss"] - line["ssl"]) / line["kl"] for line in lines]
    assert betas == pytest.approx([0.5 * (1 - cos(pi * k / 8)) / 2 for k in range(8)], abs=1e-3)
    assert {"sigma", "snr", "spread", "lr", "images_per_s"} <= lines[0].keys()
    assert lines[0]["sigma"] == pytest.approx(
        0.0067379, rel=0.2
    )  # exp(−10/2), and a step of 1/√8 times a warm-up's rate


def test_what_a_checkpoint_says_of_itself(tmp_path: Path) -> None:
    start(recipe("ssl.tau_batch=128", "ssl.tau_base=0.98", "ssl.tau_end=0.98", "posterior.kl_scale=dataset"), tmp_path)
    about = checkpoint.peek(tmp_path / "checkpoint.safetensors")["recipe"]
    data = DataConfig(holdout=0.8).load()
    assert about["kind"] == "pretrain"
    assert about["kl_scale"] == len(data) == about["data"]["images"]
    assert about["data"]["digest"] == data.digest
    assert about["tau_base"] == about["tau_end"] == pytest.approx(0.98**0.5)
    assert about["config"]["train"]["batch"] == 64
    plain = ["posterior.family=none", "ssl.tau_base=0.9", "ssl.tau_end=0.95", "train.minutes=1e-9"]
    start(recipe(*plain), tmp_path / "plain")
    about = checkpoint.peek(tmp_path / "plain" / "checkpoint.safetensors")["recipe"]
    assert (about["tau_base"], about["tau_end"]) == (0.9, 0.95)


def test_kl_scale_counts_the_weights_that_are_covered() -> None:
    data = ImageSet("zeros", torch.zeros(7, 1, 8, 8, dtype=torch.uint8))
    changes = "posterior.kl_scale=parameters", "posterior.coverage=linear-only"
    module = build(recipe(*changes), data, 1, torch.device("cpu"))
    # 36·12 + 12 of the layer; in both heads hidden 16 and outputs 8.
    assert module.kl_scale == 36 * 12 + 12 + sum(inputs * 16 + 16 + 16 * 8 for inputs in (12, 8))


def test_views_are_drawn_for_the_global_batch() -> None:
    """Any number of processes sees the same images under the same numbers."""
    data = ImageSet("noise", torch.randint(0, 256, (20, 1, 8, 8), dtype=torch.uint8))
    task, cpu = PretrainTask(recipe(), data, 1, torch.device("cpu")), torch.device("cpu")

    def uniforms(rank: int, world: int) -> Tensor:
        batch = next(iter(Batches(task.data, 8 // world, rank=rank, world=world)))
        found = task.inputs(batch, torch.Generator().manual_seed(3), Place(0, 10, rank, world, cpu))
        return torch.cat([found[0].flatten(1).float(), *found[1]], 1)

    whole = uniforms(0, 1)
    for world in (2, 4):
        parts = [uniforms(rank, world) for rank in range(world)]
        assert torch.equal(torch.stack(parts, 1).flatten(0, 1), whole)


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_other_precisions_agree_with_float32(tmp_path: Path, precision: str) -> None:
    changes = ["train.optimizer=sgd", "train.lr=0.01", "posterior.family=none", f"model.encoder={STEADY}"]
    for name in ("32-true", precision):
        start(recipe(*changes, f"train.precision={name}"), tmp_path / name)
    ours, theirs = ([line["ssl"] for line in log(tmp_path / name)] for name in (precision, "32-true"))
    assert ours == pytest.approx(theirs, rel=0.02 if precision == "bf16-mixed" else 1e-3)
    weights = state(tmp_path / precision)["module"]["student.encoder.0.weight"]
    assert weights.dtype == (torch.float64 if precision == "64-true" else torch.float32)


STEADY = f"python:{Path(__file__).stem}:steady"


def test_a_norm_of_single_values_needs_two_images_at_a_time(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train\.batch=1 is one image at a time, and a BatchNorm needs two"):
        start(recipe("train.batch=1"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_restored_run_asks_for_no_weights_from_elsewhere(tmp_path: Path) -> None:
    start(recipe("model.encoder=vit-nano/4", "train.minutes=1e-9"), tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    tree = checkpoint.load(path)
    tree["recipe"]["config"]["model"]["pretrained"] = True
    checkpoint.save(path, tree)
    module, settings = restore(tmp_path)
    assert settings.model.pretrained
    assert differences(tree["module"], dict(module.state_dict())) == []


# The command


def test_bad_input_ends_in_a_sentence_and_changes_nothing(tmp_path: Path, call: Any) -> None:
    run = tmp_path / "run"
    for words, sentence in (
        (arguments(run, "train.epoch=3"), "train.epoch"),
        (arguments(run, "train.epochs=three"), "1 to 1,000,000,000 or 'auto', not 'three'"),
        (arguments(run, "train.warmup=5"), "train.warmup=5 epochs do not fit into train.epochs=2"),
        (arguments(run, "train.batch=100000"), "fewer than a batch"),
        (arguments(run, "model.encoder=vit-nano/5"), "no network called"),
        (arguments(run, "model.encoder=python:nowhere_at_all:net"), "cannot be imported"),
        (arguments(run, "posterior.kl_scale=-1"), "kl_scale must be above 0"),
        (arguments(run, "data.name=digitz"), "digitz"),
        (arguments(run, "views.mean=[0.5, 0.5]"), "views.mean has 2 numbers for images of 1 channels"),
        (arguments(run, "model.encoder=a:b"), "unlike that of 'a:b'"),
        (arguments(run, "model.hidden=1000000", "model.outputs=1000000"), "model.outputs = 1000000 would take 22,"),
        (["pretrain", tmp_path / "none.toml", "--run", run], "There is no recipe at"),
    ):
        status, _, error = call(*words)
        assert (status, sentence in error, "Traceback" in error) == (2, True, False), error
        assert not run.exists()


def test_a_run_is_stopped_and_resumed_by_the_command(tmp_path: Path, call: Any) -> None:
    """That it is neither overwritten nor changed is in tests/train."""
    status, _, said = call(*arguments(tmp_path, "train.minutes=1e-9"))
    assert status == 0
    shown = " ".join(said.split())
    assert "their noise may cost up to βP/2N = 0.05 of the loss, which for BYOL lies between 0 and 8." in shown
    assert "stopped at its time limit (step 1 of 8; continue with --resume)" in shown
    status, _, said = call(*arguments(tmp_path, resume=True))
    assert (status, "finished" in said, state(tmp_path)["step"]) == (0, True, 8)


def test_a_diverged_run_keeps_its_checkpoint_and_exits_with_1(tmp_path: Path, call: Any) -> None:
    wild = ("train.optimizer=sgd", "train.lr=1e6", "train.warmup=0", "train.save_minutes=0")
    status, _, said = call(*arguments(tmp_path, *wild))
    assert status == 1
    assert re.search(r"The loss is nan at step \d\. Try a lower train\.lr, train\.clip=1\.0", said)
    kept = state(tmp_path)
    assert kept["step"] == log(tmp_path)[-1]["step"] - 1
    assert bool(kept["module"]["student.q.0.mean"].isfinite().all())


# Processes


@pytest.mark.slow
@pytest.mark.parametrize(("family", "compiled"), [("gaussian", False), ("none", False), ("gaussian", True)])
def test_two_processes_equal_one(tmp_path: Path, family: str, compiled: bool) -> None:
    """Half the batch each, one draw for both, synchronised BatchNorm: three steps of the same run, compiled or not."""
    posterior = (f"posterior.family={family}", "posterior.shared_draw=true", "posterior.log_var=-6")
    # Adam would make steps of full length of a gradient that is only rounding.
    rates = ("train.optimizer=sgd", "train.log_var_optimizer=same", "train.log_var_lr=1", "train.lr=0.1")
    size = ("train.warmup=0", "train.batch=96", "train.epochs=1", "data.holdout=0.78")
    changes = (*posterior, *rates, *size, f"model.encoder={STEADY}")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--"]
    two = [*changes, "train.devices=auto", f"train.compile={str(compiled).lower()}"]
    command += [str(BYOV_COMMAND), *arguments(tmp_path / "two", *two)]
    paths = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])  # of what this file imports
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths.rstrip(os.pathsep)}
    subprocess.run(command, cwd=HERE, env=env, check=True, timeout=1800)
    torch.manual_seed(0)
    initial = build(recipe(*changes), recipe(*changes).data.load(), 1, torch.device("cpu")).state_dict()
    assert start(recipe(*changes), tmp_path / "one")
    one, two = state(tmp_path / "one"), state(tmp_path / "two")
    assert one["step"] == two["step"] == one["total"] == 3
    # What the first process reports is the loss of its half: there were two indeed.
    assert abs(log(tmp_path / "one")[0]["ssl"] - log(tmp_path / "two")[0]["ssl"]) > 1e-4
    assert one["module"].keys() == two["module"].keys()
    for name, expected in one["module"].items():
        torch.testing.assert_close(two["module"][name], expected, rtol=1e-5, atol=1e-5)
    weight = "student.encoder.0.weight" if family == "none" else "student.q.0.mean"
    assert not torch.allclose(initial[weight], two["module"][weight], atol=1e-3)
    module, _ = restore(tmp_path / "two")  # one process is enough to use it
    assert differences(two["module"], dict(module.state_dict())) == []
