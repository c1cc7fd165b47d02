"""What a run writes down, and what is left of it when the run is taken up at an earlier step."""

from __future__ import annotations

import json
import os
import re
import threading
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import byov
from byov.ssl.pretrain import EncoderConfig, GaussianConfig, Pretrain, start
from byov.train.journal import LAYER_RECORDS, LEAST_INTERVAL, Journal, layers_due
from byov.train.train_config import TrainConfig


def entries(run: Path, name: str = "log.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def write(run: Path, start: int, steps: range, total: int = 20, active: bool = True) -> None:
    with Journal(run, start, total, 4, active) as journal:
        for step in steps:
            journal.write(step, 0.5 * step, {"loss": 1.0 / step, "sigma": 0.01}, speed=100.04)


def test_one_json_line_per_report(tmp_path: Path) -> None:
    write(tmp_path / "deep" / "run", 0, range(1, 4))
    lines = entries(tmp_path / "deep" / "run")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[1] == {"step": 2, "epoch": 0.5, "seconds": 1.0, "images_per_s": 100.0, "loss": 0.5, "sigma": 0.01}


def test_what_was_written_beyond_the_checkpoint_is_taken_out(tmp_path: Path) -> None:
    write(tmp_path, 0, range(1, 8))
    first = (tmp_path / "log.jsonl").read_text().splitlines()[:4]
    write(tmp_path, 4, range(5, 11))
    assert [line["step"] for line in entries(tmp_path)] == list(range(1, 11))
    assert (tmp_path / "log.jsonl").read_text().splitlines()[:4] == first


@pytest.mark.parametrize(
    "rest", ['{"step": 4, "lo', "{", "", "null", '{"loss": 1.0}', '{"step": "x"}', "[1]", '{"step": 1e400}']
)
def test_a_line_cut_short_by_a_kill_is_taken_out(tmp_path: Path, rest: str) -> None:
    write(tmp_path, 0, range(1, 4))
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write(rest)
    write(tmp_path, 3, range(4, 6))
    assert [line["step"] for line in entries(tmp_path)] == [1, 2, 3, 4, 5]


def test_a_new_run_starts_with_nothing(tmp_path: Path) -> None:
    """A run that was killed before its first checkpoint left lines, and no state that they belong to."""
    model = byov.bayesianize(nn.Linear(2, 2), byov.Gaussian())
    for last in (4, 3):
        with Journal(tmp_path, 0, 20, 4, True) as journal:
            journal.record_layers(0, model)
        write(tmp_path, 0, range(1, last))
    assert [line["step"] for line in entries(tmp_path)] == [1, 2]
    assert entries(tmp_path, "layers.jsonl") == []


def test_a_broken_line_costs_no_other(tmp_path: Path) -> None:
    """Bytes that are no text, or a number that is none, in the middle of a log: what follows still belongs to it."""
    write(tmp_path, 0, range(1, 5))
    lines = (tmp_path / "log.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "log.jsonl").write_bytes(b"".join([lines[0], b"\xff\xfe\0\n", b'{"step": 1e400}\n', *lines[2:]]))
    write(tmp_path, 3, range(4, 6))
    whole = [line for line in (tmp_path / "log.jsonl").read_bytes().splitlines() if line.startswith(b'{"step": ')]
    assert [json.loads(line)["step"] for line in whole] == [1, float("inf"), 3, 4, 5]


@pytest.mark.parametrize("name", ["log.jsonl", "layers.jsonl"])
def test_a_file_that_is_no_log_is_left_alone_and_the_other_not_cut(tmp_path: Path, name: str) -> None:
    write(tmp_path, 0, range(1, 5))
    (tmp_path / name).write_text("my notes\n")
    before = (tmp_path / "log.jsonl").read_bytes()
    with pytest.raises(FileExistsError, match=f"{name} is not the log of a run"):
        write(tmp_path, 2, range(3, 5))
    assert (tmp_path / name).read_text() == "my notes\n"
    assert (tmp_path / "log.jsonl").read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without pipes")
def test_a_pipe_in_the_place_of_a_log_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "layers.jsonl")
    with pytest.raises(FileExistsError, match=r"layers\.jsonl is not the log of a run"):
        write(tmp_path, 0, range(1, 2))


def test_the_hook_for_threads_is_put_back(tmp_path: Path) -> None:
    before = threading.excepthook
    write(tmp_path, 0, range(1, 3))
    assert threading.excepthook is before
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "tensorboard").write_text("no folder")
    with pytest.raises(OSError, match="tensorboard"), Journal(tmp_path / "b", 0, 20, 4, True):
        pass
    assert threading.excepthook is before


def test_tensorboard_has_each_step_once(tmp_path: Path) -> None:
    write(tmp_path, 0, range(1, 8))
    write(tmp_path, 4, range(5, 11))
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    scalars = board.Scalars("loss")
    assert [event.step for event in scalars] == list(range(1, 11))
    assert [event.value for event in scalars] == pytest.approx([1.0 / step for step in range(1, 11)])


def test_an_alarm_is_written_once_with_its_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal(tmp_path, 0, 20, 4, True) as journal:
        journal.alarm(6, "Something is wrong.")
        journal.alarm(7, "Something is wrong.")
        journal.alarm(8, "Something else is.", about="else")
    assert entries(tmp_path) == [
        {"step": 6, "alarm": "Something is wrong."},
        {"step": 8, "alarm": "Something else is."},
    ]
    assert capsys.readouterr().err.count("Something is wrong.") == 1
    write(tmp_path, 5, range(6, 7))  # taken up before it happened
    assert [line["step"] for line in entries(tmp_path)] == [6]
    assert "alarm" not in entries(tmp_path)[0]


def test_all_ranks_but_the_first_are_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Journal(tmp_path / "run", 0, 20, 4, False) as journal:
        journal.write(1, 0.5, {"loss": 1.0})
        journal.advance(2)
        journal.alarm(2, "Something is wrong.")
        journal.record_layers(0, byov.bayesianize(nn.Linear(2, 2), byov.Gaussian()))
    assert not (tmp_path / "run").exists()
    assert capsys.readouterr() == ("", "")


def test_an_error_closes_the_log(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0, 20, 4, True)
    with pytest.raises(TypeError), journal:
        journal.write(1, 0.5, {"loss": object()})
    assert journal.file.closed
    assert entries(tmp_path) == []


@pytest.mark.parametrize("total", [1, 3, 40, 99, 400, 4_321, 60_000])
def test_about_a_hundred_records_with_the_first_and_the_last(total: int) -> None:
    steps = [step for step in range(total + 1) if layers_due(step, total)]
    assert (steps[0], steps[-1]) == (0, total)
    assert len(steps) <= 1.5 * LAYER_RECORDS + 2
    if total >= LEAST_INTERVAL * LAYER_RECORDS:
        assert len(steps) >= LAYER_RECORDS


# Layers


def recipe(**train: Any) -> Pretrain:
    return Pretrain(
        model=EncoderConfig("convnet32", hidden=16, outputs=8),
        posterior=GaussianConfig(log_var=-10.0, beta_end=0.1),
        train=TrainConfig(epochs=2, batch=128, warmup=1, accelerator="cpu", devices=1, **train),
    )


def test_a_run_that_was_stopped_has_the_records_of_one_that_was_not(tmp_path: Path) -> None:
    start(recipe(), tmp_path / "whole")
    whole = entries(tmp_path / "whole", "layers.jsonl")
    assert [entry["step"] for entry in whole] == [0, 4, 8, 12, 16, 20]
    assert whole[-1]["epoch"] == 2.0
    first = {name: row[1] for name, row in whole[0]["layers"].items()}
    assert first == pytest.approx(dict.fromkeys(first, 0.00673795), rel=1e-5)  # exp(-5), as every σ starts
    assert whole[-1]["layers"]["projector.0"][1] != whole[0]["layers"]["projector.0"][1]

    assert not start(recipe(minutes=1e-9), tmp_path / "parts")  # one step
    with (tmp_path / "parts" / "layers.jsonl").open("a") as file:  # as if it had gone on and been killed
        file.write('{"step": 4, "epoch": 0.4, "layers": {}}\n{"step": 8, "epo')
    start(recipe(), tmp_path / "parts", resume=True)
    assert entries(tmp_path / "parts", "layers.jsonl") == whole


def test_a_run_without_a_posterior_has_no_layers(tmp_path: Path) -> None:
    with Journal(tmp_path, 0, 20, 4, True) as journal:
        journal.record_layers(0, nn.Linear(2, 2))
    assert not (tmp_path / "layers.jsonl").exists()


# The bar


def shown(journal: Journal) -> str:
    """What a terminal of 200 columns shows of the bar."""
    console = Console(width=200, file=StringIO(), force_terminal=True)
    with console.capture() as capture:
        console.print(journal.bar.get_renderable())
    return re.sub(r"\x1b\[[\d;]*m", "", capture.get())


def test_the_bar_says_what_it_waits_for_and_then_where_it_is(tmp_path: Path) -> None:
    with Journal(tmp_path / "compiled", 0, 20, 4, True, compiled=True) as journal:
        assert "compiling, for the first step …" in shown(journal)
        values = {"loss": 90.0, "ssl": 3.25, "kl": 7.5, "sigma": 0.01}
        journal.write(1, 0.5, values, speed=1234.0)
        first = shown(journal)
        journal.advance(9)
        assert "epoch 3/5" in shown(journal)
    assert "epoch 1/5" in first
    assert "ssl 3.25 kl 7.5 sigma 0.01 · 1,234 images/s" in first
    assert "loss" not in first  # the sum rises as β does, and looks like divergence
    assert "compiling" not in first
    assert re.search(r"1/20.*\d:\d\d:\d\d · ETA [-\d:]+\s*$", first)
    with Journal(tmp_path / "plain", 0, 20, 4, True) as journal:
        assert "the first step …" in shown(journal)
        assert "compiling" not in shown(journal)
        journal.write(1, 0.5, {"loss": 0.5, "kl": 7.5}, speed=1.0)
        assert "loss 0.5 kl 7.5" in shown(journal)
