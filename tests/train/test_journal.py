"""What a run writes down, and what is left of it when the run is taken up at an earlier step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from byov.train.journal import Journal


def entries(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


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


@pytest.mark.parametrize("rest", ['{"step": 4, "lo', "{", "", "null", '{"loss": 1.0}', '{"step": "x"}', "[1]"])
def test_a_line_cut_short_by_a_kill_is_taken_out(tmp_path: Path, rest: str) -> None:
    write(tmp_path, 0, range(1, 4))
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write(rest)
    write(tmp_path, 3, range(4, 6))
    assert [line["step"] for line in entries(tmp_path)] == [1, 2, 3, 4, 5]


def test_a_new_run_starts_a_new_log(tmp_path: Path) -> None:
    """A run that was killed before its first checkpoint left lines, and no state that they belong to."""
    write(tmp_path, 0, range(1, 4))
    write(tmp_path, 0, range(1, 3))
    assert [line["step"] for line in entries(tmp_path)] == [1, 2]


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
    assert not (tmp_path / "run").exists()
    assert capsys.readouterr() == ("", "")


def test_an_error_closes_the_log(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0, 20, 4, True)
    with pytest.raises(TypeError), journal:
        journal.write(1, 0.5, {"loss": object()})
    assert journal.file.closed
    assert entries(tmp_path) == []
