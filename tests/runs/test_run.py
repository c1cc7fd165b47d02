"""Runs are opened in one place: what they are, what they refuse, what their numbers depend on."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import byov
from byov.data.config import DataConfig
from byov.runs import CHECKPOINT, Reading, Run, open_run, read_header
from byov.runs.header import is_table
from byov.runs.run import digest
from byov.train import checkpoint


def opened(runs: Path, name: str, **changes: Any) -> Run:
    return open_run(runs / name, Reading(samples=4, fit_samples=2, limit=40, train_limit=200, **changes), name)


@pytest.mark.parametrize(("name", "kind"), [("byov", "pretrain"), ("bbb", "train")])
def test_a_run_says_what_it_is(runs: Path, name: str, kind: str) -> None:
    run = opened(runs, name)
    assert (run.kind, run.data, run.shape, run.posterior) == (kind, "digits", (1, 8, True), True)
    assert run.header is not None
    assert run.header.finished
    assert run.digest == digest(run.weights) != opened(runs, {"byov": "bbb", "bbb": "byov"}[name]).digest
    protocol = run.protocol()
    assert protocol["model"]["digest"] == run.digest
    about = {"name": "digits", "split": "test", "digest": run.images.digest, "images": 40, "shape": [1, 8, 8]}
    assert protocol["data"] == about
    assert (protocol["train"] is None) == (kind == "train")
    assert open_run(runs / name / CHECKPOINT).digest == run.digest
    assert torch.equal(run.load("test").images[run.places], run.images.images)
    kept, held = run.load_own("train"), run.load_own("holdout")  # which the recipe leaves out
    assert len(kept) + len(held) == len(run.load("train"))
    assert len(held) == pytest.approx(0.8 * len(run.load("train")), abs=5)


def test_its_own_data_are_looked_for_where_the_reading_says(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []
    load = DataConfig.load

    def watched(config: DataConfig, *split: str) -> Any:
        asked.append(config.root)
        return load(config, *split)

    monkeypatch.setattr(DataConfig, "load", watched)
    opened(runs, "bbb").load_own("test")
    opened(runs, "bbb", root=tmp_path).load_own("test")
    assert asked == [None, str(tmp_path)]


@pytest.mark.parametrize("name", ["byov", "bbb"])
def test_what_is_averaged_are_the_draws(runs: Path, name: str) -> None:
    run = opened(runs, name)
    draws = run.draws(run.pixels)
    assert draws.shape == (4, 40, 10)
    assert run.under_draws is not None
    assert_close(draws.mean(0), run.under_draws.mean.cpu(), atol=1e-6, rtol=0)
    assert draws.std(0).max() > 1e-4
    assert_close(run.draws(run.pixels[:7]), draws[:, :7], atol=1e-6, rtol=0)  # the same draws, whatever the images


@pytest.mark.parametrize("name", ["byov", "bbb"])
def test_another_version_of_the_network_is_read_by_the_same_head(runs: Path, name: str) -> None:
    run = opened(runs, name)
    assert run.q is not None
    point = run.q.point()
    assert_close(run.predictor.read(point, run.pixels), run.at_mean.mean, atol=1e-6, rtol=0)
    with torch.no_grad():
        next(iter(point.parameters())).zero_()
    assert not torch.allclose(run.predictor.read(point, run.pixels), run.at_mean.mean)


def test_a_teacher_is_read_by_a_probe_of_its_own(runs: Path) -> None:
    student, teacher = opened(runs, "byov"), opened(runs, "byov", network="teacher")
    assert (student.posterior, teacher.posterior, teacher.under_draws) == (True, False, None)
    assert not torch.allclose(teacher.at_mean.mean, student.at_mean.mean, atol=1e-4)
    assert "network" not in student.protocol()["model"]  # as in files older than it
    assert teacher.protocol()["model"]["network"] == "teacher"
    assert teacher.digest == student.digest


def test_a_network_of_one_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("mine")
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    module.net = lambda: byov.bayesianize(net, byov.Gaussian(-4.0))  # type: ignore[attr-defined]
    module.number = lambda: 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mine", module)
    run = open_run("python:mine:net", Reading(samples=3, data="digits", limit=20))
    assert (run.kind, run.header, run.posterior) == ("python", None, True)
    assert run.prediction.mean.shape == (20, 10)
    assert not is_table("python:mine:net")
    with pytest.raises(ValueError, match="returns int"):
        open_run("python:mine:number")
    with pytest.raises(ValueError, match="Say which images"):
        _ = open_run("python:mine:net").images


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("none", {}, "There is no run at"),
        ("cake", {}, "its kind is 'cake'"),
        ("bbb", {"image_size": 32}, "1 channels and 8 pixels"),
        ("bbb", {"network": "teacher"}, "this is a classifier"),
        ("bbb", {"temper": True}, "this is a classifier"),
        ("byov", {"strategy": "vmap"}, "its strategy is loop, not vmap"),
        ("byov", {"tolerance": 0.1}, "leave out --tolerance"),
        ("bbb", {"samples": 0}, "samples is at least 1"),
        ("bbb", {"precision": "16"}, "A precision is 32-true or bf16-mixed"),
        ("bbb", {"strategy": "luck"}, "A strategy is auto, loop or vmap"),
        ("bbb", {"tolerance": 0.0}, "A tolerance is above 0"),
        ("bbb", {"network": "pupil"}, "student or the teacher, not 'pupil'"),
        ("bbb", {"data": " "}, "A data set has a name"),
    ],
)
def test_refusals(runs: Path, tmp_path: Path, name: str, changes: dict[str, Any], says: str) -> None:
    checkpoint.save(tmp_path / "cake" / CHECKPOINT, {"recipe": {"kind": "cake"}})
    with pytest.raises(ValueError, match=says):
        open_run(tmp_path / name if name in ("none", "cake") else runs / name, Reading(**changes))


def test_other_kinds_of_runs_are_refused(runs: Path) -> None:
    with pytest.raises(ValueError, match="not a run of byov pretrain: its kind is 'train'"):
        read_header(runs / "bbb", ["pretrain"])
    assert not is_table(str(runs / "bbb"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mean": [0.1, 0.2, 0.3]}, "mean and std do not have 1 channels"),
        ({"mean": [float("nan")]}, "mean or std is out of range"),
        ({"std": [0.0]}, "mean or std is out of range"),
    ],
)
def test_moments_that_images_cannot_have_are_damage(
    runs: Path, tmp_path: Path, changes: dict[str, list[float]], said: str
) -> None:
    state = checkpoint.load(runs / "bbb" / CHECKPOINT)
    about = {**state["recipe"], "data": {**state["recipe"]["data"], **changes}}
    checkpoint.save(tmp_path / CHECKPOINT, {**state, "recipe": about})
    with pytest.raises(ValueError, match=f"{CHECKPOINT} is damaged: in its header, {said}"):
        open_run(tmp_path)
