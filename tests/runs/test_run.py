"""Runs are opened in one place: what they are, what they refuse, what their numbers depend on."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import byov
from byov.runs import CHECKPOINT, Reading, Run, open_run, read_header
from byov.runs.header import is_table
from byov.runs.run import digest
from byov.ssl.pretrain import Pretrain
from byov.ssl.pretrain import start as pretrain
from byov.train import checkpoint
from byov.train.config import load_config
from byov.train.supervised import Supervised
from byov.train.supervised import start as train

SHORT = ["data.name=digits", "train.epochs=1", "train.warmup=0", "train.batch=128", "train.accelerator=cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretraining run and a supervised one, of one epoch each; the second holds out a fifth of its images."""
    made = tmp_path_factory.mktemp("runs")
    small = ["model.encoder=convnet16", "model.hidden=16", "model.outputs=8", "posterior.log_var=-6"]
    pretrain(load_config(Pretrain, None, [*SHORT, *small]), made / "byov", False)
    held = ["model.name=convnet16", "data.holdout=0.2", "posterior.log_var=-6"]
    train(load_config(Supervised, None, [*SHORT, *held]), made / "bbb", False)
    return made


def opened(folder: Path, name: str, **changes: object) -> Run:
    return open_run(folder / name, Reading(samples=4, fit_samples=2, limit=40, train_limit=200, **changes), name)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "kind"), [("byov", "pretrain"), ("bbb", "train")])
def test_a_run_says_what_it_is(folder: Path, name: str, kind: str) -> None:
    run = opened(folder, name)
    assert (run.kind, run.data, run.shape, run.posterior) == (kind, "digits", (1, 8, True), True)
    assert run.header is not None
    assert run.header.finished
    assert run.digest == digest(run.weights) != opened(folder, {"byov": "bbb", "bbb": "byov"}[name]).digest
    protocol = run.protocol()
    assert protocol["model"]["digest"] == run.digest
    assert protocol["data"] == {
        "name": "digits",
        "split": "test",
        "digest": run.images.digest,
        "images": 40,
        "shape": [1, 8, 8],
    }
    assert (protocol["train"] is None) == (kind == "train")
    by_file = open_run(folder / name / CHECKPOINT)
    assert by_file.digest == run.digest


@pytest.mark.parametrize("name", ["byov", "bbb"])
def test_what_is_averaged_are_the_draws(folder: Path, name: str) -> None:
    run = opened(folder, name)
    draws = run.draws(run.pixels)
    assert draws.shape == (4, 40, 10)
    assert run.under_draws is not None
    assert_close(draws.mean(0), run.under_draws.mean.cpu(), atol=1e-6, rtol=0)
    assert draws.std(0).max() > 1e-4
    assert_close(run.draws(run.pixels[:7]), draws[:, :7], atol=1e-6, rtol=0)  # the same draws, whatever the images


@pytest.mark.parametrize("name", ["byov", "bbb"])
def test_another_version_of_the_network_is_read_by_the_same_head(folder: Path, name: str) -> None:
    run = opened(folder, name)
    assert run.q is not None
    point = run.q.point()
    assert_close(run.predictor.read(point, run.pixels), run.at_mean.mean, atol=1e-6, rtol=0)
    with torch.no_grad():
        next(iter(point.parameters())).zero_()
    assert not torch.allclose(run.predictor.read(point, run.pixels), run.at_mean.mean)


def test_a_teacher_is_read_by_a_probe_of_its_own(folder: Path) -> None:
    student, teacher = opened(folder, "byov"), opened(folder, "byov", network="teacher")
    assert (student.posterior, teacher.posterior, teacher.under_draws) == (True, False, None)
    assert not torch.allclose(teacher.at_mean.mean, student.at_mean.mean, atol=1e-4)
    assert "network" not in student.protocol()["model"]  # as in files older than it
    assert teacher.protocol()["model"]["network"] == "teacher"
    assert teacher.digest == student.digest
    with pytest.raises(ValueError, match="this is a classifier"):
        opened(folder, "bbb", network="teacher")
    with pytest.raises(ValueError, match="student or the teacher, not 'pupil'"):
        Reading(network="pupil")  # type: ignore[arg-type]


def test_own_data_leave_out_what_the_recipe_holds_out(folder: Path) -> None:
    run = opened(folder, "bbb")
    kept, held = run.load_own("train"), run.load_own("holdout")
    assert len(kept) + len(held) == len(run.load("train"))
    assert len(held) == pytest.approx(0.2 * len(run.load("train")), abs=1)


def test_the_images_read_are_at_their_places(folder: Path) -> None:
    run = opened(folder, "bbb")
    assert torch.equal(run.load("test").images[run.places], run.images.images)


def test_a_network_of_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mine")
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    module.net = lambda: byov.bayesianize(net, byov.Gaussian(-4.0))  # type: ignore[attr-defined]
    module.number = lambda: 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mine", module)
    run = open_run("python:mine:net", Reading(samples=3, data="digits", limit=20))
    assert (run.kind, run.header, run.posterior) == ("python", None, True)
    assert run.prediction.mean.shape == (20, 10)
    with pytest.raises(ValueError, match="returns int"):
        open_run("python:mine:number")
    with pytest.raises(ValueError, match="Say which images"):
        _ = open_run("python:mine:net").images


def test_refusals(folder: Path, tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "cake", {"recipe": {"kind": "cake"}})
    for path, says in [(tmp_path / "none", "There is no run at"), (tmp_path / "cake", "its kind is 'cake'")]:
        with pytest.raises(ValueError, match=says):
            open_run(path)
    with pytest.raises(ValueError, match="not a run of byov pretrain: its kind is 'train'"):
        read_header(folder / "bbb", ["pretrain"])
    with pytest.raises(ValueError, match="1 channels and 8 pixels"):
        opened(folder, "bbb", image_size=32)
    with pytest.raises(ValueError, match="its strategy is loop, not vmap"):
        opened(folder, "byov", strategy="vmap")
    with pytest.raises(ValueError, match="leave out --tolerance"):
        opened(folder, "byov", tolerance=0.1)
    with pytest.raises(ValueError, match="this is a classifier"):
        opened(folder, "bbb", temper=True)
    for changes, says in [
        ({"samples": 0}, "samples is at least 1"),
        ({"precision": "16"}, "A precision is 32-true or bf16-mixed"),
        ({"strategy": "luck"}, "A strategy is auto, loop or vmap"),
        ({"tolerance": 0.0}, "A tolerance is above 0"),
    ]:
        with pytest.raises(ValueError, match=says):
            Reading(**changes)  # type: ignore[arg-type]
    assert not is_table(str(folder / "bbb"))
    assert not is_table("python:mine:net")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mean": [0.1, 0.2, 0.3]}, "mean and std are not of 1 channels"),
        ({"mean": [float("nan")]}, "mean or std is out of range"),
        ({"std": [0.0]}, "mean or std is out of range"),
    ],
)
def test_moments_that_images_cannot_have_are_damage(
    folder: Path, tmp_path: Path, changes: dict[str, list[float]], said: str
) -> None:
    state = checkpoint.load(folder / "bbb" / CHECKPOINT)
    about = {**state["recipe"], "data": {**state["recipe"]["data"], **changes}}
    checkpoint.save(tmp_path / CHECKPOINT, {**state, "recipe": about})
    with pytest.raises(ValueError, match=f"{CHECKPOINT} is damaged: of its header, {said}"):
        open_run(tmp_path)


def test_no_name_is_no_data_set() -> None:
    with pytest.raises(ValueError, match="A data set has a name"):
        Reading(data=" ")
