"""A run's folder is never overwritten, has one writer, and goes on only with the recipe it was started with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from saved_runs import differences, log, state
from torch import Tensor, nn

from byov.data.batches import epoch_order
from byov.train import Stopped, checkpoint
from byov.train.config import load_config, to_dict
from byov.train.run import RESUMABLE, claim
from byov.train.supervised import Supervised, restore, start

HERE = Path(__file__)
TESTS = [str(HERE.parent), str(HERE.parents[1])]
"""Where a process of its own finds this file and what it imports."""
SETTINGS = [  # 4 steps in an epoch
    *(f"model.name=python:{HERE.stem}:network", "data.holdout=0.8", "train.epochs=2", "train.batch=64"),
    *("train.warmup=0", "train.log_every=1", "train.accelerator=cpu", "train.devices=1"),
]


def recipe(*changes: str) -> Supervised:
    return load_config(Supervised, None, [*SETTINGS, "posterior.family=none", *changes])


def run_of(folder: Path, *changes: str, kind: str = "train") -> Path:
    about = {"kind": kind, "config": to_dict(recipe(*changes))}
    checkpoint.save(folder / "checkpoint.safetensors", {"recipe": about, "w": torch.ones(3)})
    return folder


def test_a_new_folder_is_free_also_to_resume_in(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        for resume in (False, True):
            assert claim(tmp_path / name, "train", recipe(), resume) is False
    assert not (tmp_path / "new").exists()


def test_a_run_is_resumed_with_its_own_recipe_but_for_what_does_not_change_the_result(tmp_path: Path) -> None:
    free = ("minutes=1", "save_minutes=1", "log_every=7", "workers=3", "cuda_graphs=false")
    assert {f"train.{each.partition('=')[0]}" for each in free} | {"data.root", "data.download"} == RESUMABLE
    for changes in ((), (*(f"train.{each}" for each in free), "data.root=elsewhere")):
        assert claim(run_of(tmp_path), "train", recipe(*changes), resume=True) is True


def test_a_setting_that_is_newer_than_the_run_was_at_its_default(tmp_path: Path) -> None:
    file = run_of(tmp_path) / "checkpoint.safetensors"
    saved = checkpoint.load(file)
    del saved["recipe"]["config"]["train"]["clip"]
    checkpoint.save(file, saved)
    assert claim(tmp_path, "train", recipe(), resume=True) is True
    with pytest.raises(ValueError, match=r"started with train\.clip = None, not 1\.0"):
        claim(tmp_path, "train", recipe("train.clip=1"), resume=True)


@pytest.mark.parametrize(
    ("kind", "changed", "sentence"),
    [
        ("train", "train.lr=0.5", r"The run was started with train.lr = 0.001, not 0.5"),
        ("train", "train.warmup=1", r"The run was started with train.warmup = 0.0, not 1.0"),
        ("train", "crop.scale=0.5,1", r"The run was started with crop.scale = \[0.08, 1.0\], not \[0.5, 1.0\]"),
        ("pretrain", "train.seed=0", r"is not a run of byov train, but of byov pretrain\."),
        ("table", "train.seed=0", r"is not a run of byov train, but of byov train on a table\."),
    ],
)
def test_another_recipe_or_kind_of_run_is_refused(tmp_path: Path, kind: str, changed: str, sentence: str) -> None:
    crops = "augment=resized-crop"
    with pytest.raises(ValueError, match=sentence):
        claim(run_of(tmp_path, crops, kind=kind), "train", recipe(crops, changed), resume=True)


@pytest.mark.parametrize("state", [None, 3, [1, 2], {}, {"recipe": 3}, {"recipe": {"kind": ["train"]}}])
def test_a_checkpoint_that_is_none_is_told_in_a_sentence(tmp_path: Path, state: Any) -> None:
    file = tmp_path / "checkpoint.safetensors"
    if state is None:
        file.write_bytes(b"what is this, a letter to somebody?")
    else:
        checkpoint.save(file, state)
    for opened in (lambda: claim(tmp_path, "train", recipe(), resume=True), lambda: restore(tmp_path)):
        with pytest.raises(ValueError, match=f"{tmp_path}.* is not a (byov checkpoint|run of byov train)"):
            opened()


# Whole runs


class Network(nn.Module):
    """A linear classifier that sends its own process a signal, in its third forward pass; in two processes the second.

    BYOV_TEST_SIGNAL says which.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.line, self.calls = nn.Linear(64, classes), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        number = os.environ.get("BYOV_TEST_SIGNAL")
        if number and self.training and self.calls == 3 and os.environ.get("RANK", "1") == "1":
            os.kill(os.getpid(), int(number))
        return self.line(x.flatten(1))


def network(classes: int) -> nn.Module:
    """Build the network; BYOV_TEST_EARLY names a signal that comes meanwhile."""
    if number := os.environ.get("BYOV_TEST_EARLY"):
        os.kill(os.getpid(), int(number))
    return Network(classes)


def words(run: Path, *changes: str) -> list[str]:
    sets = [word for change in (*SETTINGS, "posterior.family=none", *changes) for word in ("--set", change)]
    return ["train", "--run", str(run), *sets, "--resume"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1], ids=lambda number: number.name)
@pytest.mark.parametrize(("when", "step"), [("BYOV_TEST_SIGNAL", 3), ("BYOV_TEST_EARLY", 0)])
def test_one_command_line_starts_stops_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any, when: str, step: int, number: signal.Signals
) -> None:
    """The signal comes while the run trains, or while it is prepared."""
    command = words(tmp_path / "run")
    monkeypatch.setenv(when, str(int(number)))
    status, _, error = call(*command)
    assert status == 0
    assert f"stopped by {number.name} (step {step} of 8; continue with --resume)" in " ".join(error.split())
    assert checkpoint.peek(tmp_path / "run" / "checkpoint.safetensors")["step"] == step
    monkeypatch.delenv(when)
    status, _, error = call(*command)
    assert status == 0
    assert "finished" in error
    assert "bit-identical" not in error
    assert start(recipe(), tmp_path / "whole")
    assert differences(state(tmp_path / "run"), state(tmp_path / "whole")) == []
    assert [line["step"] for line in log(tmp_path / "run")] == list(range(1, 9))


def test_a_stop_ends_what_trains_several_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BYOV_TEST_SIGNAL", str(int(signal.SIGTERM)))
    with pytest.raises(Stopped, match="stopped by SIGTERM"):
        start(recipe(), tmp_path)


def test_other_numbers_of_threads_and_versions_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not start(recipe("train.minutes=1e-9"), tmp_path)
    file = tmp_path / "checkpoint.safetensors"
    saved = checkpoint.load(file)
    checkpoint.save(file, {**saved, "threads": 7, "processes": 2, "torch": "2.0"})
    start(recipe("train.minutes=1e-9"), tmp_path, resume=True)
    error = " ".join(capsys.readouterr().err.split())
    assert (
        "warning: The run will not be bit-identical to an uninterrupted one: it was saved with torch 2.0, not" in error
    )
    assert "threads 7, not 1, processes 2, not 1." in error
    for name in ("threads", "processes", "device"):  # as older checkpoints
        del saved[name]
    checkpoint.save(file, saved)
    start(recipe("train.minutes=1e-9"), tmp_path, resume=True)
    assert "bit-identical" not in capsys.readouterr().err


def test_two_processes_do_not_write_one_folder(tmp_path: Path, call: Any) -> None:
    run = tmp_path / "run"
    start(recipe("train.minutes=1e-9"), run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    holding = (
        f"import fcntl, sys; f = open({str(run / '.lock')!r}, 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True)"
    )
    holder = subprocess.Popen([sys.executable, "-c", f"{holding}; sys.stdin.read()"], stdin=-1, stdout=-1)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        status, _, error = call(*words(run))
        assert status == 2
        assert error.endswith("run is being written by another process: wait for it, or end it.\n")
        assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    finally:
        holder.kill()
        holder.communicate()
    assert call(*words(run))[0] == 0  # a kill leaves no lock


def test_a_killed_save_leaves_nothing_for_long(tmp_path: Path) -> None:
    left = tmp_path / ".checkpoint.safetensors.abc.tmp"
    left.mkdir()
    (left / "checkpoint.safetensors").write_bytes(b"half")
    start(recipe("train.minutes=1e-9"), tmp_path)
    assert not left.exists()


LIMITED = """
import resource, sys
sys.path[:0] = {tests!r}
from byov.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", [64, 1500])
def test_a_full_disk_is_one_sentence_and_the_old_checkpoint_is_whole(tmp_path: Path, limit: int) -> None:
    """A limit on the size of files stands in for it: at 64 bytes the log does not grow, at 1,500 it does."""
    start(recipe("train.minutes=1e-9"), tmp_path / "run")
    file = tmp_path / "run" / "checkpoint.safetensors"
    before = file.read_bytes()
    code = LIMITED.format(tests=TESTS, limit=limit)
    command = [sys.executable, "-c", code, *words(tmp_path / "run", "train.save_minutes=0")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr
    name = "checkpoint.safetensors could not be written" if limit > 1000 else f"{tmp_path / 'run'}"
    assert name in done.stderr
    assert file.read_bytes() == before
    assert start(recipe(), tmp_path / "run", resume=True)


def test_doubles_are_trained_and_restored(tmp_path: Path) -> None:
    for family in ("none", "gaussian"):
        settings = recipe(f"posterior.family={family}", "train.precision=64-true", "augment=crop-flip")
        assert start(settings, tmp_path / family)
        weights = state(tmp_path / family)["module"].values()
        assert all(weight.dtype == torch.float64 for weight in weights if weight.is_floating_point())
        restore(tmp_path / family)


def test_the_weights_of_another_network_are_told_with_the_file(tmp_path: Path) -> None:
    start(recipe("train.minutes=1e-9"), tmp_path)
    file = tmp_path / "checkpoint.safetensors"
    saved = checkpoint.load(file)
    other = saved["module"]
    name = next(name for name in other if name.endswith("line.weight"))
    cases: list[tuple[dict[str, Any], str]] = [
        ({**other, name: other[name][:, :3]}, "size mismatch"),
        ({**other, name: other[name].int()}, "torch.int32, not torch.float32"),
        ({"else": other[name]}, "Missing key|Unexpected key"),
    ]
    for module, sentence in cases:
        checkpoint.save(file, {**saved, "module": module})
        with pytest.raises(ValueError, match=f"{file} does not fit what its recipe describes: .*({sentence})"):
            start(recipe(), tmp_path, resume=True)
        with pytest.raises(ValueError, match=f"does not fit what its recipe describes: .*({sentence})"):
            restore(tmp_path)
    checkpoint.save(file, {**saved, "optimizer": {"state": {}, "param_groups": []}})
    with pytest.raises(ValueError, match=f"{file} does not fit what its recipe describes"):
        start(recipe(), tmp_path, resume=True)


# Processes


def launch(run: Path, *changes: str, processes: int = 1, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "byov"]
    if processes > 1:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "-m"]
        command += ["--", "byov"]
    command += words(run, *changes, *["train.devices=auto"] * (processes > 1))
    path = os.pathsep.join([*TESTS, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
def test_pictures_that_cannot_be_read_are_told_of_by_every_process(tmp_path: Path) -> None:
    """Few of them once, at the end; more than may be by the process that met them, also where it is not the first."""
    (tmp_path / "set").mkdir()
    for label, number in ((label, number) for label in "ab" for number in range(60)):
        (tmp_path / "set" / label).mkdir(exist_ok=True)
        pixels = torch.randint(0, 256, (8, 8), dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(tmp_path / "set" / label / f"{number:02}.png")
    names = [f"{label}/{number:02}.png" for label in "ab" for number in range(60)]
    order = epoch_order(120, 0, 0, rank=1, world=2).tolist()
    settings = (f"data.name=folder:{tmp_path / 'set'}", "data.image_size=8", "data.channels=1", "data.holdout=0")
    settings = (*settings, "train.epochs=1", "train.batch=24", "train.workers=0")
    (tmp_path / "set" / names[order[0]]).write_text("no picture")
    process = launch(tmp_path / "few", *settings, processes=2)
    _, error = process.communicate(timeout=1800)
    assert process.returncode == 0, error
    assert " ".join(error.split()).count("1 of the 120 images of folder:set cannot be read and were left out") == 1
    (tmp_path / "set" / names[order[1]]).write_text("no picture")
    process = launch(tmp_path / "many", *settings, processes=2)
    _, error = process.communicate(timeout=1800)
    assert process.returncode != 0
    assert error.count("byov, process 1: 2 of the 120 images of folder:set cannot be read, over 1%") == 1


@pytest.mark.slow
def test_two_processes_end_in_one_sentence(tmp_path: Path) -> None:
    """A setting that does not fit, a process that is killed, and one that alone is asked to stop."""
    _, error = launch(tmp_path / "odd", "train.batch=65", processes=2).communicate(timeout=1800)
    assert error.count("train.batch=65 cannot be divided among 2 processes × 1 accumulated parts") == 1
    assert error.index("cannot be divided") < error.index("Traceback")  # which is torchrun's
    kill = str(int(signal.SIGKILL))
    process = launch(tmp_path / "dies", "train.epochs=50", processes=2, BYOV_TEST_SIGNAL=kill)
    _, error = process.communicate(timeout=1800)
    assert error.count("Another process of this run has ended") == 1
    process = launch(tmp_path / "stops", processes=2, BYOV_TEST_SIGNAL=str(int(signal.SIGUSR1)))
    _, error = process.communicate(timeout=1800)
    assert process.returncode == 0, error
    assert error.count("stopped by SIGUSR1 (step 3 of 8; continue with --resume)") == 1
    assert checkpoint.peek(tmp_path / "stops" / "checkpoint.safetensors")["step"] == 3
