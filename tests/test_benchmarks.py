"""The table of all speeds runs, keeps what it measured and goes on from it, at sizes that prove nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
TINY = ("--device", "cpu", "--threads", "1", "--tiny")


def run(*words: object, script: str = "all.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", str(FOLDER / script), *map(str, words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, env=environment)


def measured(file: Path, *words: object) -> tuple[dict[str, Any], dict[str, Any], subprocess.CompletedProcess[str]]:
    """Measure some rows; return the rows by name, the measurements that are kept, and the process."""
    done = run(*TINY, "--json", file, *words)
    assert done.returncode in (0, 1), done.stderr  # these sizes say nothing about the bar
    content = json.loads(file.read_text())
    return {row["row"]: row for row in content["rows"]}, content["measurements"], done


def test_a_second_call_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    rows, before, first = measured(file, "--only", "draws-vit-ti4")
    assert list(before) == ["draws"]
    assert set(before["draws"]["ratio"]) == {"draws", "draws by predict"}
    assert rows["draws-vit-ti4"]["status"] == ("pass" if rows["draws-vit-ti4"]["value"] <= 1.10 else "MISSED")
    assert first.returncode == int(rows["draws-vit-ti4"]["status"] == "MISSED")
    assert rows["regression"]["status"] == "not measured yet"

    rows, after, second = measured(file, "--only", "draws-vit-ti4", "regression")
    assert after["draws"] == before["draws"]
    assert rows["regression"]["value"] == after["regression"]["ratio"]["looped"]["median"] > 0
    assert "regression MLP, looped ÷ batched" in second.stdout


def test_rows_in_processes_of_their_own_are_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = tmp_path / "turns"
    monkeypatch.setenv("BYOV_TURNS", str(turns))
    _, kept, _ = measured(tmp_path / "all.json", "--together", "--only", "draws-vit-ti4", "regression")
    assert set(kept) == {"draws", "regression"}
    assert kept["regression"]["ratio"]["looped"]["median"] > 0
    assert len(list(turns.glob("ready_*"))) == 2
    assert (turns / "go").exists()


def test_the_rows_of_a_gpu_run_on_a_cpu_in_its_place(tmp_path: Path) -> None:
    names = ("gaussian-vit-s16", "emp-resnet18", "head-vit-s16")
    rows, _, _ = measured(tmp_path / "all.json", "--as-cuda", "--only", *names, "memory-vit-s16")
    for name in names:
        assert rows[name]["status"] in ("pass", "MISSED")
        assert rows[name]["value"] > 0
    assert "by predict" in rows["head-vit-s16"]["note"]
    assert rows["memory-vit-s16"]["note"] == "not measured on this device"


def test_kernels_of_a_step_are_listed_for_both_contenders() -> None:
    done = run("vit_ti4", "--tiny", "--top", "3", script="kernels.py")
    assert done.returncode == 0, done.stderr
    for name in ("deterministic", "byov Gaussian"):
        _, _, part = done.stdout.partition(f"{name}, vit_ti4, batch 4:")
        rows = [line.split() for line in part.splitlines()[1:5]]
        times = [float(row[0]) for row in rows]
        assert times[0] >= times[1] >= times[2] > 0
        assert rows[3][2] == "all;"
        assert times[3] >= sum(times[:3]) - 0.01


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture
def command() -> ModuleType:
    return import_module("all")  # benchmarks/all.py


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
    for device in ("cuda", "cpu"):
        rows, measurements = command.table(device)
        assert {row.measurement for row in rows} == set(measurements)
    rows, _ = command.table("cuda")
    step, memory = (next(row for row in rows if row.name == name) for name in ("gaussian-vit-s16", "memory-vit-s16"))
    for ratio, status in ((1.02, "pass"), (1.07, "MISSED")):
        part = {"median": ratio, "low": ratio, "high": ratio}
        peaks = {"deterministic": 100.0, "byov Gaussian": 100.0 * ratio}
        book = command.Book(None, {}, False)
        book.kept = {"vit_s16": {"ms": {}, "ratio": {"byov Gaussian": part}, "peak_mib": peaks}}
        assert [command.outcome(row, book)["status"] for row in (step, memory)] == [status, status]
    assert command.outcome(step, command.Book(None, {}, False))["status"] == "not measured yet"

    regression = next(row for row in command.table("cpu")[0] if row.name == "regression")
    assert [regression.passed(value) for value in (9.9, 10.1)] == [False, True]


def test_the_networks_of_the_table_are_plain_ones_of_the_sizes_they_are_named_for(command: ModuleType) -> None:
    import torch
    from networks import NETWORKS, TINY

    import byov

    assert set(NETWORKS) == set(TINY)
    sizes = {"vit_ti4": 5_362_762, "vit_s16": 22_050_664, "resnet18": 11_173_962, "resnet18_224": 11_689_512}
    for name, network in NETWORKS.items():
        with torch.device("meta"):
            net = network.build()
        assert not [module for module in net.modules() if isinstance(module, byov.BayesianModule)]
        assert sum(parameter.numel() for parameter in net.parameters()) == sizes[name]


def test_draws_are_timed_beside_as_many_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    import predict  # benchmarks/predict.py
    import torch

    given: dict[str, list[float]] = {"passes": [1.0, 1.0], "loop": [4.0, 4.0], "vmap": [3.0, 3.0]}
    monkeypatch.setattr(predict, "interleaved", lambda steps, rounds, device: {name: given[name] for name in steps})
    found = predict.timed("mlp", draws=2 * predict.PASSES, batch=2, rounds=2, device=torch.device("cpu"))
    assert found["ms"] == {"passes": 2000.0, "loop": 4000.0, "vmap": 3000.0}  # half of the passes were run
    assert (found["ratio"]["loop"]["median"], found["ratio"]["vmap"]["median"]) == (2.0, 1.5)


def test_a_cliff_is_more_than_in_proportion() -> None:
    from growth import cliffs

    def sweep(ms: list[float], mib: list[float]) -> dict[str, dict]:
        places = zip((10, 20, 40), ms, mib, strict=True)
        return {str(at): {"at": at, "ms": {"byov Gaussian": a}, "mib": {"byov Gaussian": b}} for at, a, b in places}

    assert cliffs({"batch": sweep([1.0, 1.5, 3.0], [5.0, 5.0, 5.0])}) == []
    assert cliffs({"batch": sweep([1.0, 2.0, 4.0], [1.0, 2.0, 8.0])}) == ["batch 20 → 40: mib × 2.00 of proportion"]
    assert cliffs({"batch": sweep([1.0, 4.0, 8.0], [1.0, 2.0, 4.0])}) == ["batch 10 → 20: ms × 2.00 of proportion"]
