"""`byov probe`: the table, the file of numbers, and what its options change."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from byov.data.config import DataConfig
from byov.evaluation.end_of_run import pretrain_lines
from byov.evaluation.probing import probe_run
from byov.report.tables import probes
from byov.ssl.linear_evaluation import LinearSettings, linear_evaluation
from byov.ssl.pretrain import restore
from byov.ssl.probe import ProbeResult, ProbeSettings, Scores

PROBE = ("--samples", "2", "--fit-samples", "1", "--k", "10", "--seed", 4, "--device", "cpu")


@pytest.fixture(scope="module")
def run(runs: Path) -> Path:
    return runs / "byov"


def probed(call: Any, run: Path, out: Path, *more: object) -> tuple[dict[str, Any], str]:
    """Run the command; return what it wrote and what it printed."""
    status, shown, err = call("probe", run, *PROBE, *more, "--out", out)
    assert status == 0, err
    return json.loads(out.read_text()), shown


@pytest.fixture
def plain(call: Any, run: Path, tmp_path: Path) -> dict[str, Any]:
    return probed(call, run, tmp_path / "plain.json")[0]


def test_it_prints_a_table_and_writes_the_numbers_with_their_protocol(call: Any, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "probe.json"
    saved, shown = probed(call, run, out)
    expected = probe_run(run, samples=2, fit_samples=1, k=10, seed=4, device="cpu")
    assert saved["scores"] == pytest.approx(expected.result.numbers())
    assert {name.partition("/")[0] for name in saved["scores"]} == {"linear", "linear_draws", "knn", "knn_draws"}
    protocol = saved["protocol"]
    recipe = restore(run)[1]
    train, test = recipe.data.load(), recipe.data.load("test")
    assert protocol["train"] == {"name": "digits", "digest": train.digest, "images": len(train)}
    assert protocol["test"] == {"name": "digits", "digest": test.digest, "images": 450}
    assert (protocol["run"], protocol["split"], protocol["device"]) == (str(run), "test", "cpu")
    assert (protocol["torch"], protocol["temperatures"]) == (torch.__version__, {})
    settings = protocol["settings"]
    assert [settings[name] for name in ("k", "draws_fit", "draws_read", "seed")] == [10, 1, 2, 4]
    assert f"{100 * saved['scores']['linear/top1']:.2f}" in shown
    assert [path.name for path in out.parent.iterdir()] == ["probe.json"]
    assert probed(call, run, out, "--seed", 5, "--force")[0]["protocol"]["settings"]["seed"] == 5


def test_nearest_neighbours_are_those_at_the_end_of_pretraining(call: Any, run: Path) -> None:
    status, shown, _ = call("probe", run, "--split", "holdout", "--samples", 0, "--device", "cpu")
    at_end = re.search(r"kNN at μ (\d+\.\d) % of .* \((k = \d+), ", " ".join(pretrain_lines(run)))
    top1 = re.search(r"kNN, μ +(\d+\.\d+)", shown)
    assert status == 0
    assert at_end is not None
    assert top1 is not None
    assert (float(at_end[1]), at_end[2]) == (round(float(top1[1]), 1), "k = 20")
    assert "(kNN: k = 20)" in shown


def test_temperatures_are_fitted_where_they_are_asked_for(
    call: Any, run: Path, plain: dict[str, Any], tmp_path: Path
) -> None:
    warm, _ = probed(call, run, tmp_path / "warm.json", "--temper")
    assert set(warm["protocol"]["temperatures"]) == {"at_mean", "under_draws"}
    for name in ("linear", "linear_draws"):
        assert warm["scores"][f"{name}/top1"] == plain["scores"][f"{name}/top1"]
        assert warm["scores"][f"{name}/nll"] != plain["scores"][f"{name}/nll"]


def test_byols_linear_evaluation_is_read_beside_its_own(
    call: Any, run: Path, plain: dict[str, Any], tmp_path: Path
) -> None:
    both, shown = probed(call, run, tmp_path / "both.json", "--protocol", "byol", "--epochs", 1)
    assert "BYOL, teacher" in shown
    assert {name: both["scores"][name] for name in plain["scores"]} == plain["scores"]
    names = {name.partition("/")[0] for name in both["scores"].keys() - plain["scores"].keys()}
    readings = {"byol", "byol_draws", "byol_teacher"}
    assert names == readings | {f"{name}_tempered" for name in readings}
    about = both["protocol"].pop("linear_evaluation")
    assert both["protocol"] == plain["protocol"]
    assert (about["epochs"], about["draws_read"], about["seed"]) == (1, 2, 4)
    assert set(about["chosen"]) == readings
    for name, chosen in about["chosen"].items():
        assert list(chosen["held_out"]) == ["0.4", "0.3", "0.2", "0.1", "0.05"]
        assert chosen["held_out"][str(chosen["rate"])] == max(chosen["held_out"].values())
        assert both["scores"][f"{name}/top1"] == both["scores"][f"{name}_tempered/top1"]
    module, recipe = restore(run)
    data = [recipe.data.load(split) for split in ("train", "test")]
    settings, views = LinearSettings(epochs=1, draws_read=2, seed=4), module.views
    found = linear_evaluation(module, *data, settings, mean=views.mean, std=views.std)
    assert both["scores"]["byol_draws/nll"] == pytest.approx(found["student_draws"].scores.nll, rel=1e-4)
    assert both["scores"]["byol_teacher_tempered/nll"] == pytest.approx(found["teacher"].tempered.nll, rel=1e-4)


def test_the_teacher_is_read_at_its_mean(call: Any, run: Path, plain: dict[str, Any], tmp_path: Path) -> None:
    teacher, shown = probed(call, run, tmp_path / "teacher.json", "--network", "teacher")
    assert "BYOL, teacher" not in shown
    assert teacher["protocol"]["network"] == "teacher"
    assert {name.partition("/")[0] for name in teacher["scores"]} == {"linear", "knn"}
    assert teacher["scores"]["linear/nll"] != plain["scores"]["linear/nll"]


def test_the_part_that_was_held_out_is_read(run: Path) -> None:
    held = DataConfig(holdout=0.8).load("holdout")
    found = probe_run(run, "holdout", samples=0, k=1000, device="cpu")
    assert found.protocol["test"] == {"name": "digits", "digest": held.digest, "images": len(held)}
    assert found.protocol["train"]["images"] == 1347 - len(held)
    assert found.protocol["settings"]["k"] == (1347 - len(held)) // 10  # at most a tenth of those asked
    assert set(found.result.scores) == {"linear", "knn"}  # without draws


def test_the_table_names_models_word_for_word_and_fits_a_terminal() -> None:
    scores = Scores(**dict.fromkeys(Scores.__dataclass_fields__, 0.5))
    result = ProbeResult({"linear": scores, "knn_draws": scores}, {}, None, ProbeSettings(k=7))  # type: ignore[arg-type]
    console = Console(width=80)
    with console.capture() as capture:
        console.print(probes({"[red]a[/red]": result, "[/]": result}))
    text = capture.get()
    assert all(words in text for words in ("[red]a[/red]", "[/]", "linear, μ", "kNN, draws"))
    assert text.count("50.00") == 8
    assert "(kNN: k = 7)" in text
    assert not any(words in text for words in ("kNN, μ", "…"))
