"""The command: every verb's help is enough to use it, and bad input ends in one sentence and status 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from rich.console import Console
from torch import nn

import byov
from byov.cli import VERBS, app, main
from byov.data.config import DataConfig
from byov.evaluation.probing import probe_run
from byov.posterior import BayesianModule
from byov.report.tables import probes
from byov.ssl.linear_evaluation import LinearSettings, linear_evaluation
from byov.ssl.pretrain import Pretrain, restore, start
from byov.ssl.probe import ProbeResult, Scores
from byov.train import checkpoint
from byov.train.config import load_config

TREE: Any = typer.main.get_command(app)
SMALL = [
    f"model.encoder=python:{Path(__file__).stem}:encoder",
    "model.hidden=16",
    "model.outputs=8",
    "train.epochs=1",
    "train.batch=64",
    "train.warmup=0",
    "train.accelerator=cpu",
    "train.devices=1",
]
PROBE = ("--samples", "2", "--fit-samples", "1", "--k", "10", "--device", "cpu", "--trust")


def encoder() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 12))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a fifth of the digits; the rest is held out."""
    folder = tmp_path_factory.mktemp("runs") / "a [small] run"
    assert start(load_config(Pretrain, None, [*SMALL, "data.holdout=0.8"]), folder)
    return folder


def sentence(result: tuple[int, str, str]) -> str:
    """What a refusal says, once it is seen to be one: status 2, one line on stderr, nothing on stdout."""
    status, out, err = result
    assert (status, out) == (2, ""), err
    assert err.startswith("byov: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    return err.removeprefix("byov: ").removesuffix("\n")


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Help


def test_help_names_every_verb(call: Any) -> None:
    status, out, _ = call("--help")
    assert status == 0
    assert set(TREE.commands) == set(VERBS)
    for verb, command in TREE.commands.items():
        assert verb in out
        assert " ".join(command.help.split()[:4]) in " ".join(out.replace("│", " ").split())
    assert call("-h")[1] == out
    assert "Usage:" in (bare := "".join(call()[1:]))  # no verb at all
    assert all(verb in bare for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_names_all_it_takes(call: Any, verb: str) -> None:
    status, out, _ = call(verb, "--help")
    assert status == 0
    shown = " ".join(out.replace("│", " ").split())
    assert TREE.commands[verb].params
    for parameter in TREE.commands[verb].params:
        if parameter.name == "help":
            continue
        names = parameter.opts if parameter.param_type_name == "option" else [parameter.name]
        assert all(name in shown for name in names), parameter.name
        assert parameter.help, f"byov {verb} says nothing about {parameter.name}"
        assert all(word in shown for word in parameter.help.split()[:3]), parameter.help


def test_words_that_no_verb_takes(call: Any, run: Path) -> None:
    for words, said in (
        (["prob"], "No such command"),
        (["probe"], "Missing argument"),
        (["probe", run, "--sample", 3], "No such option"),
        (["probe", run, "--samples", "three"], "--samples"),
        (["probe", run, "again"], "unexpected extra argument"),
        (["predict", run, ""], f"There is an empty argument after {run}: leave it out"),
        (["train", "--run", " "], "There is an empty argument after --run: leave it out"),
    ):
        status, out, err = call(*words)
        assert (status, out) == (2, "")
        assert said in err
        assert "Traceback" not in err


# In a process of its own


def python_m_byov(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "byov", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )


def test_python_m_byov(tmp_path: Path) -> None:
    """The status and the sentence as a shell sees them; markup in a path is no markup."""
    (tmp_path / "[b]taken[/c]").mkdir(parents=True)
    found = python_m_byov(tmp_path, "overhead", "resnet18", "--json", "[b]taken[/c]")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == "byov: [b]taken[/c] is a folder: --json takes the name of a file.\n"


# byov probe


def test_probe_prints_a_table_and_writes_the_numbers_with_their_protocol(call: Any, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "probe.json"
    status, shown, _ = call("probe", run, *PROBE, "--seed", 4, "--out", out)
    assert status == 0
    saved = json.loads(out.read_text())
    expected = probe_run(run, samples=2, fit_samples=1, k=10, seed=4, device="cpu", trust=True)
    assert saved["scores"] == pytest.approx(expected.result.numbers())
    assert {name.partition("/")[0] for name in saved["scores"]} == {"linear", "linear_draws", "knn", "knn_draws"}
    protocol = saved["protocol"]
    recipe = restore(run)[1]
    train, test = recipe.data.load(), recipe.data.load("test")
    assert protocol["train"] == {"name": "digits", "digest": train.digest, "images": len(train)}
    assert protocol["test"] == {"name": "digits", "digest": test.digest, "images": 450}
    assert (protocol["run"], protocol["split"], protocol["device"]) == (str(run), "test", "cpu")
    assert protocol["torch"] == torch.__version__
    settings = protocol["settings"]
    assert [settings[name] for name in ("k", "draws_fit", "draws_read", "seed")] == [10, 1, 2, 4]
    assert f"{100 * saved['scores']['linear/top1']:.2f}" in shown
    assert "[small]" in shown
    assert [path.name for path in out.parent.iterdir()] == ["probe.json"]

    before = out.read_bytes()
    assert sentence(call("probe", run, *PROBE, "--out", out)) == f"{out} exists: choose another --out, or say --force."
    assert out.read_bytes() == before
    assert call("probe", run, *PROBE, "--seed", 5, "--out", out, "--force")[0] == 0
    assert json.loads(out.read_text())["protocol"]["settings"]["seed"] == 5


def test_probe_fits_temperatures_where_it_is_asked_to(call: Any, run: Path, tmp_path: Path) -> None:
    saved = []
    for more in ([], ["--temper"]):
        out = tmp_path / f"{len(more)}.json"
        assert call("probe", run, *PROBE, *more, "--out", out)[0] == 0
        saved.append(json.loads(out.read_text()))
    plain, warm = saved
    assert plain["protocol"]["temperatures"] == {}
    assert set(warm["protocol"]["temperatures"]) == {"at_mean", "under_draws"}
    for name in ("linear", "linear_draws"):
        assert warm["scores"][f"{name}/top1"] == plain["scores"][f"{name}/top1"]
        assert warm["scores"][f"{name}/nll"] != plain["scores"][f"{name}/nll"]


def test_probe_reads_byols_linear_evaluation_beside_its_own(call: Any, run: Path, tmp_path: Path) -> None:
    saved = []
    for more in ((), ("--protocol", "byol", "--epochs", 1), ("--network", "teacher")):
        out = tmp_path / f"{len(saved)}.json"
        status, shown, _ = call("probe", run, *PROBE, *more, "--seed", 4, "--out", out)
        assert status == 0
        saved.append(json.loads(out.read_text()))
        assert ("BYOL, teacher" in shown) == ("byol" in more)
    plain, both, teacher = saved
    assert {name: both["scores"][name] for name in plain["scores"]} == plain["scores"]
    names = {name.partition("/")[0] for name in both["scores"].keys() - plain["scores"].keys()}
    readings = {"byol", "byol_draws", "byol_teacher"}
    assert names == readings | {f"{name}_tempered" for name in readings}
    about = both["protocol"].pop("linear_evaluation")
    assert both["protocol"] == plain["protocol"]
    assert (about["epochs"], about["batch"], about["draws_read"], about["seed"]) == (1, 6, 2, 4)
    assert set(about["chosen"]) == readings
    for name, chosen in about["chosen"].items():
        assert list(chosen["held_out"]) == ["0.4", "0.3", "0.2", "0.1", "0.05"]
        assert chosen["held_out"][str(chosen["rate"])] == max(chosen["held_out"].values())
        assert both["scores"][f"{name}/top1"] == both["scores"][f"{name}_tempered/top1"]
    module = restore(run)[0]
    data = [restore(run)[1].data.load(split) for split in ("train", "test")]
    settings, views = LinearSettings(epochs=1, draws_read=2, seed=4), module.views
    found = linear_evaluation(module, *data, settings, mean=views.mean, std=views.std)
    assert both["scores"]["byol_draws/nll"] == pytest.approx(found["student_draws"].scores.nll, rel=1e-4)
    assert both["scores"]["byol_teacher_tempered/nll"] == pytest.approx(found["teacher"].tempered.nll, rel=1e-4)
    assert teacher["protocol"]["network"] == "teacher"
    assert {name.partition("/")[0] for name in teacher["scores"]} == {"linear", "knn"}
    assert teacher["scores"]["linear/nll"] != plain["scores"]["linear/nll"]


def test_probe_reads_the_part_that_was_held_out(run: Path) -> None:
    held = DataConfig(holdout=0.8).load("holdout")
    found = probe_run(run, "holdout", samples=0, k=1000, device="cpu", trust=True)
    assert found.protocol["test"] == {"name": "digits", "digest": held.digest, "images": len(held)}
    assert found.protocol["train"]["images"] == 1347 - len(held)
    assert found.protocol["settings"]["k"] == (1347 - len(held)) // 10  # at most a tenth of those asked
    assert set(found.result.scores) == {"linear", "knn"}  # without draws


def test_probe_has_no_held_out_part_to_read(call: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(load_config(Pretrain, None, [*SMALL, "train.minutes=1e-9"]), tmp_path / "run")
    capsys.readouterr()
    said = sentence(call("probe", tmp_path / "run", *PROBE, "--split", "holdout"))
    assert said == "Nothing is held out: set data.holdout."


def test_probe_tells_bad_input_in_one_sentence(call: Any, run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no checkpoint, and no folder")
    (tmp_path / "empty").mkdir()
    (tmp_path / "taken").mkdir()
    for name, content in {
        "train": {"recipe": {"kind": "train"}},
        "other": {"weights": torch.zeros(3)},
        "list": [1, 2],
    }.items():
        checkpoint.save(tmp_path / name / "checkpoint.safetensors", content)
    (tmp_path / "broken").mkdir()
    whole = (run / "checkpoint.safetensors").read_bytes()
    (tmp_path / "broken" / "checkpoint.safetensors").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "pickle.pt").write_bytes(b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01K\x01s.")
    before = files(tmp_path)
    cases: list[tuple[list[object], str]] = [
        ([tmp_path / "none"], "There is no run at"),
        ([tmp_path / "empty"], "There is no run at"),
        ([tmp_path / "file" / "below"], "There is no run at"),
        ([tmp_path / "file"], "is not a byov checkpoint"),
        ([tmp_path / "pickle.pt"], "is not a byov checkpoint"),
        ([tmp_path / "broken"], "is truncated: it has"),
        ([tmp_path / "train"], "is damaged: of its header, config is absent"),
        ([tmp_path / "other"], f"{tmp_path / 'other'} is not a"),
        ([tmp_path / "list"], f"{tmp_path / 'list'} is not a"),
        ([run, "--split", "validation"], "digits has the splits train, test"),
        ([run, "--samples", -1], "read under none or more"),
        ([run, "--fit-samples", 0], "at least one draw"),
        ([run, "--k", 0], "k lies between 1"),
        ([run, "--protocol", "simclr"], "A protocol is lbfgs or byol, not 'simclr'."),
        ([run, "--protocol", "byol", "--epochs", 0], "epochs is at least 1, not 0."),
        ([run, "--network", "pupil"], "A network is the student or the teacher, not 'pupil'."),
        ([run, "--precision", "16"], "A precision is 32-true or bf16-mixed, not '16'."),
        ([run, "--device", "gpu"], "There is no device 'gpu' here."),
        ([run, "--device", "cuda:77"], "There is no device 'cuda:77' here."),
        ([run, "--out", tmp_path / "taken"], "is a folder: --out takes the name of a file"),
        ([run, "--out", tmp_path / "taken", "--force"], "is a folder: --out takes the name of a file"),
        ([run, "--out", tmp_path / "file" / "a" / "b.json"], "is a file: there can be no b.json below it"),
    ]
    for words, said in cases:
        assert said in sentence(call("probe", *words, "--trust")), words
        assert files(tmp_path) == before


# byov pretrain, train and evaluate: paths


@pytest.mark.parametrize("verb", ["pretrain", "train"])
def test_a_run_needs_a_folder(call: Any, tmp_path: Path, verb: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "recipe.toml").write_text("[train\n")
    at = ["--set", "train.accelerator=cpu"]
    assert "is a file, and a run needs a folder" in sentence(call(verb, "--run", tmp_path / "file", *at))
    assert sentence(call(verb, "--run", tmp_path / "file" / "run", *at)).endswith(
        "file is a file, and a run needs a folder."
    )
    assert "recipe.toml" in sentence(call(verb, tmp_path / "recipe.toml", "--run", tmp_path / "run"))
    assert sentence(call(verb, tmp_path, "--run", tmp_path / "run"))
    assert files(tmp_path) == {tmp_path / "file": b"mine", tmp_path / "recipe.toml": b"[train\n"}


def test_evaluate_is_told_what_is_no_run(call: Any, run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("nothing")
    (tmp_path / "empty").mkdir()
    for where, said in (
        (tmp_path / "file" / "below", "There is no run at"),
        (tmp_path / "empty", "There is no run at"),
        (tmp_path / "file", "is"),
    ):
        assert said in sentence(call("evaluate", where, "--out", tmp_path / "out.json"))
    assert not (tmp_path / "out.json").exists()


def test_what_is_our_fault_ends_in_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug is not to be mistaken for bad input."""
    monkeypatch.setattr("byov.evaluation.probing.probe_run", lambda *_, **__: {}["bug"])
    monkeypatch.setattr(sys, "argv", ["byov", "probe", "anywhere"])
    with pytest.raises(KeyError, match="bug"):
        main()


# The table


def test_the_table_of_probes_names_models_word_for_word_and_fits_a_terminal() -> None:
    scores = Scores(**dict.fromkeys(Scores.__dataclass_fields__, 0.5))
    result = ProbeResult({"linear": scores, "knn_draws": scores}, {}, None, None)  # type: ignore[arg-type]
    console = Console(width=80)
    with console.capture() as capture:
        console.print(probes({"[red]a[/red]": result, "[/]": result}))
    text = capture.get()
    assert "[red]a[/red]" in text
    assert "[/]" in text
    assert text.count("50.00") == 8
    assert "linear, μ" in text
    assert "kNN, draws" in text
    assert "kNN, μ" not in text
    assert "…" not in text


def test_a_restored_encoder_has_the_posterior_of_its_recipe(run: Path) -> None:
    module, recipe = restore(run)
    student: nn.Module = module.student  # type: ignore[attr-defined, assignment]
    assert isinstance(student, BayesianModule)
    assert isinstance(student.factors[0].family, byov.Gaussian)
    assert recipe.data.holdout == 0.8
