"""What `byov train` and `byov pretrain` end with, and that nothing in it can fail a run."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import byov
from byov.evaluation import end_of_run
from byov.evaluation.end_of_run import pretrain_lines, table_lines, train_lines
from byov.runs import Reading, open_run

SMALL = ("train.epochs=1", "train.warmup=0", "train.accelerator=cpu", "model.hidden=16", "model.outputs=8")
QUICK = ("train.epochs=2", "train.warmup=0", "train.accelerator=cpu", "train.lr=0.003", "model.name=convnet16")


def made(call: Any, verb: str, run: Path, *settings: str) -> tuple[str, str]:
    words = [word for setting in settings for word in ("--set", setting)]
    status, out, err = call(verb, "--run", run, *words)
    assert status == 0, err
    return out, err


def test_train_ends_with_the_scores_the_warnings_and_the_next_command(call: Any, tmp_path: Path) -> None:
    run = tmp_path / "a run"
    out, err = made(call, "train", run, *QUICK, "posterior.log_var=-12")
    first, *others, last = out.splitlines()
    assert last == f"Next: byov evaluate '{run}' --shift augmentations --out '{run}/results.json'"
    assert sum("The draws hardly differ" in line for line in others) == 1
    assert "warning" not in err
    opened = open_run(run, Reading(samples=2))
    labels = opened.labels
    right = float((opened.at_mean.mean.argmax(1) == labels).double().mean())
    nll = -float(opened.at_mean.mean.gather(1, labels[:, None]).log().mean())
    assert f"digits, test: 450 inputs: at μ accuracy {100 * right:.1f} %, NLL {nll:.3f}, ECE" in first
    assert "; under 30 draws accuracy" in first
    assert train_lines(run) == out.splitlines()  # the same draws at every look


def test_a_plain_network_has_one_line_of_scores(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of at most so many images, of those held out if the recipe holds any out."""
    monkeypatch.setattr(end_of_run, "LIMIT", 50)
    out, _ = made(call, "train", tmp_path / "run", *QUICK, "posterior.family=none", "data.holdout=0.25")
    assert re.match(r"digits, held out: 50 inputs: accuracy \d+\.\d %, NLL \d\.\d{3}, ECE \d+\.\d %\nNext: ", out)


def test_pretrain_ends_with_nearest_neighbours(call: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    out, _ = made(call, "pretrain", run, *SMALL, "data.holdout=0.5", "train.log_var_lr=0")
    assert "warning: σ has hardly moved" in out
    found = re.search(r"digits: kNN at μ (\d+\.\d) % of (\d+) held-out images \(k = 20, (\d+) training images\)", out)
    assert found is not None
    assert float(found[1]) > 30.0
    assert int(found[2]) + int(found[3]) == 1347
    assert out.splitlines()[-1] == f"Next: byov probe {run}"


@pytest.mark.parametrize(
    ("header", "settings", "target"),
    [
        ("a,b,c", [], "'c' (the last column; data.target chooses another)"),
        ("a,b,c", ["data.target=b"], "'b'"),
        ("1,2,3", ["data.target=-2"], "column 1 of 0 to 2"),
        ("1,2,3", ["posterior.family=none"], "column 2 of 0 to 2 (the last column; data.target chooses another)"),
    ],
)
def test_a_table_ends_with_its_target_and_its_scores(
    call: Any, tmp_path: Path, header: str, settings: list[str], target: str
) -> None:
    table, run = tmp_path / "t.csv", tmp_path / "run"
    table.write_text(f"{header}\n" + "".join(f"{i},{i % 7},{i * i % 11}\n" for i in range(50)))
    small = ("train.epochs=2", "train.batch=20", "train.accelerator=cpu", "posterior.family=gaussian")
    out, _ = made(call, "train", run, f"data.name=table:{table}", *small, *settings)
    scores, following = out.splitlines()
    assert following == f"Next: byov evaluate {run} --out {run}/results.json"
    assert call(*shlex.split(following.removeprefix("Next: byov ")), "--device", "cpu")[0] == 0
    found = json.loads((run / "results.json").read_text())
    found = found.get("under_draws") or found["at_mean"]
    reading = "" if "posterior.family=none" in settings else " under 30 draws"
    assert scores == (
        f"table:{table}, target {target}: 5 test rows{reading}:"
        f" RMSE {found['rmse']:.4g}, log density {found['log_density']:.3f}"
    )


def test_what_cannot_be_read_is_a_sentence(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = byov.data.load("digits")
    images, labels = data.images[:64].numpy(), data.labels[:64].numpy()
    np.savez(tmp_path / "mine.npz", train_images=images, train_labels=labels)
    out, _ = made(call, "train", tmp_path / "run", *QUICK, "train.batch=32", f"data.name=npz:{tmp_path / 'mine.npz'}")
    assert out.splitlines()[0].startswith("No scores: ")
    assert out.splitlines()[1].startswith("Next: byov evaluate")
    np.savez(tmp_path / "bare.npz", train_images=images)
    more = ("train.batch=32", f"data.name=npz:{tmp_path / 'bare.npz'}")
    out, _ = made(call, "pretrain", tmp_path / "bare", *SMALL, *more)
    assert out.splitlines()[-1].endswith("--data NAME (of labelled images)")
    assert "No scores" not in out
    shutil.rmtree(tmp_path / "run")
    assert train_lines(tmp_path / "run")[0].startswith("No scores: There is no run at")
    assert table_lines(tmp_path / "run")[0].startswith("No scores: There is no run at")
    assert pretrain_lines(tmp_path / "run")[0].startswith("No scores: There is no run at")


def test_only_the_first_process_speaks(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("byov.commands.console.first_process", lambda: False)
    assert made(call, "train", tmp_path / "run", *QUICK, "posterior.family=none")[0] == ""


def test_a_network_of_nan_does_not_fail_the_run(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(call, "train", tmp_path / "run", *QUICK)
    monkeypatch.setattr("byov.evaluation.end_of_run._batches", lambda *_: [(torch.full((2, 1, 8, 8), math.nan),) * 2])
    assert train_lines(tmp_path / "run")[0].startswith("No scores: ")
