"""The table of all speeds runs, keeps what it measured and goes on from it, at sizes that prove nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ALL = Path(__file__).parents[1] / "benchmarks" / "all.py"


def run(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ALL), "--device", "cpu", "--threads", "1", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )


def test_a_second_call_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    first = run("--tiny", "--json", file, "--only", "draws-vit-ti4")
    assert first.returncode in (0, 1), first.stderr  # these sizes say nothing about the bar
    before = json.loads(file.read_text())
    rows = {row["row"]: row for row in before["rows"]}
    assert list(before["measurements"]) == ["loader"]
    assert rows["draws-vit-ti4"]["status"] == ("pass" if rows["draws-vit-ti4"]["value"] <= 1.05 else "MISSED")
    assert first.returncode == int(rows["draws-vit-ti4"]["status"] == "MISSED")
    assert rows["regression"]["status"] == "not measured yet"

    second = run("--tiny", "--json", file, "--only", "draws-vit-ti4", "regression")
    after = json.loads(file.read_text())
    assert after["measurements"]["loader"] == before["measurements"]["loader"]
    ratio = after["measurements"]["regression"]["ratio"]["looped"]["median"]
    assert {row["row"]: row for row in after["rows"]}["regression"]["value"] == ratio > 0
    assert "regression MLP, looped ÷ batched" in second.stdout


def test_no_time_starts_nothing_and_other_settings_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    assert run("--tiny", "--minutes", 0, "--only", "regression").returncode == 3
    file.write_text(json.dumps({"about": {"device": "another"}, "rows": [], "measurements": {}}))
    refused = run("--tiny", "--json", file, "--only", "regression")
    assert (refused.returncode, "--force starts over" in refused.stderr) == (2, True)
    assert json.loads(file.read_text())["about"] == {"device": "another"}


def test_rows_have_names() -> None:
    listed = run("--list").stdout
    assert "regression" in listed
    unknown = run("--only", "nonsense")
    assert unknown.returncode == 2
    assert "There is no row nonsense" in unknown.stderr
