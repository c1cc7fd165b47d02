"""The table of all speeds runs, keeps what it measured and goes on from it, at sizes that prove nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
TINY = ("--device", "cpu", "--threads", "1", "--tiny")


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / "all.py"), *TINY, *map(str, words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def test_a_second_call_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    first = run("--json", file, "--only", "draws-vit-ti4")
    assert first.returncode in (0, 1), first.stderr  # these sizes say nothing about the bar
    before = json.loads(file.read_text())
    rows = {row["row"]: row for row in before["rows"]}
    assert list(before["measurements"]) == ["loader"]
    assert rows["draws-vit-ti4"]["status"] == ("pass" if rows["draws-vit-ti4"]["value"] <= 1.05 else "MISSED")
    assert first.returncode == int(rows["draws-vit-ti4"]["status"] == "MISSED")
    assert rows["regression"]["status"] == "not measured yet"

    second = run("--json", file, "--only", "draws-vit-ti4", "regression")
    after = json.loads(file.read_text())
    assert after["measurements"]["loader"] == before["measurements"]["loader"]
    ratio = after["measurements"]["regression"]["ratio"]["looped"]["median"]
    assert {row["row"]: row for row in after["rows"]}["regression"]["value"] == ratio > 0
    assert "regression MLP, looped ÷ batched" in second.stdout


def test_rows_in_processes_of_their_own_are_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, turns = tmp_path / "all.json", tmp_path / "turns"
    monkeypatch.setenv("BYOV_TURNS", str(turns))
    done = run("--json", file, "--together", "--only", "draws-vit-ti4", "regression")
    assert done.returncode in (0, 1), done.stderr
    kept = json.loads(file.read_text())["measurements"]
    assert set(kept) == {"loader", "regression"}
    assert kept["regression"]["ratio"]["looped"]["median"] > 0
    assert len(list(turns.glob("ready_*"))) == 2
    assert (turns / "go").exists()


def test_kernels_of_a_step_are_listed_for_both_contenders() -> None:
    command = [sys.executable, "-W", "ignore", str(FOLDER / "kernels.py"), "vit_ti4", "--tiny", "--top", "3"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    for name in ("deterministic", "byov Gaussian"):
        _, _, part = done.stdout.partition(f"{name}, vit_ti4, batch 4:")
        rows = [line.split() for line in part.splitlines()[1:5]]
        times = [float(row[0]) for row in rows]
        assert times[0] >= times[1] >= times[2] > 0
        assert rows[3][2] == "all;"
        assert times[3] >= sum(times[:3]) - 0.01


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import all as command  # benchmarks/all.py

    return command


def test_what_is_asked_wrongly_is_refused(
    command: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def status(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["all.py", *TINY, *words])
        return command.main()

    with pytest.raises(SystemExit, match="2"):
        status("--only", "nonsense")
    assert "There is no row nonsense" in capsys.readouterr().err
    file = tmp_path / "all.json"
    file.write_text(json.dumps({"about": {"device": "another"}, "rows": [], "measurements": {}}))
    assert status("--json", str(file)) == 2
    assert "--force starts over" in capsys.readouterr().err
    assert json.loads(file.read_text())["about"] == {"device": "another"}
    assert status("--list") == 0
    assert "regression" in capsys.readouterr().out


def test_a_row_says_whether_it_passed(command: ModuleType) -> None:
    rows, _ = command.table("cuda")
    step, flops = (next(row for row in rows if row.name == name) for name in ("gaussian-vit-s16", "flops-vit-s16"))
    for ratio, tflops, statuses in ((1.01, 400.0, ["pass", "pass"]), (1.03, 200.0, ["MISSED", "MISSED"])):
        part = {"median": ratio, "low": ratio, "high": ratio}
        rates = {"step": tflops * 1e12, "deterministic": 4e14, "product": 7e14, "known": 7.9e14}
        found = {"ms": {}, "ratio": {"byov Gaussian": part}, **rates}
        book = command.Book(None, {}, False)
        book.kept = {"vit_s16": found}
        assert [command.outcome(row, book)["status"] for row in (step, flops)] == statuses
    assert command.outcome(step, command.Book(None, {}, False))["status"] == "not measured yet"


def test_a_cliff_is_more_than_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    from growth import cliffs

    def sweep(ms: list[float], mib: list[float]) -> dict[str, dict]:
        places = zip((10, 20, 40), ms, mib, strict=True)
        return {str(at): {"at": at, "ms": {"byov Gaussian": a}, "mib": {"byov Gaussian": b}} for at, a, b in places}

    assert cliffs({"batch": sweep([1.0, 1.5, 3.0], [5.0, 5.0, 5.0])}) == []
    assert cliffs({"batch": sweep([1.0, 2.0, 4.0], [1.0, 2.0, 8.0])}) == ["batch 20 → 40: mib × 2.00 of proportion"]
    assert cliffs({"batch": sweep([1.0, 4.0, 8.0], [1.0, 2.0, 4.0])}) == ["batch 10 → 20: ms × 2.00 of proportion"]
