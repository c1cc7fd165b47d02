"""Nothing that a checkpoint or a file of results names is imported, unless the user says so."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from byov.runs import Reading, open_run
from byov.ssl.pretrain import Pretrain
from byov.ssl.pretrain import start as pretrain
from byov.train.config import load_config
from byov.train.supervised import Supervised
from byov.train.supervised import start as train
from byov.train.tabular import Tabular
from byov.train.tabular import start as regress

SHORT = ["train.epochs=1", "train.warmup=0", "train.accelerator=cpu", "train.devices=1"]
SMALL = ["data.name=digits", "train.batch=512"]
MODULE = """
from pathlib import Path
from torch import nn

Path({mark!r}).touch()


def encoder():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8))


def network(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def table(features, outputs):
    return nn.Linear(features, outputs)
"""
Made = tuple[dict[str, Path], Path, Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Runs of each kind with a network of `theirs.py`, a table, and the mark that importing the module leaves."""
    folder = tmp_path_factory.mktemp("theirs")
    mark, table = folder / "imported", folder / "table.csv"
    (folder / "theirs.py").write_text(MODULE.format(mark=str(mark)))
    table.write_text("a,b,y\n" + "".join(f"{i},{i * i % 7},{i % 5}\n" for i in range(40)))
    runs = {kind: folder / kind for kind in ("pretrain", "train", "table")}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        own = ["model.encoder=python:theirs:encoder", "model.hidden=8", "model.outputs=4"]
        pretrain(load_config(Pretrain, None, [*SHORT, *SMALL, *own]), runs["pretrain"])
        train(
            load_config(
                Supervised, None, [*SHORT, *SMALL, "posterior.family=gaussian", "model.name=python:theirs:network"]
            ),
            runs["train"],
        )
        own = [f"data.name=table:{table}", "model.name=python:theirs:table", "train.batch=20"]
        regress(load_config(Tabular, None, [*SHORT, *own]), runs["table"])
    return runs, table, mark


@pytest.fixture
def imported(made: Made, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Tells whether the module has been imported again, which nothing but a lack of trust keeps from happening."""
    _, _, mark = made
    monkeypatch.chdir(mark.parent)
    monkeypatch.syspath_prepend(mark.parent)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    mark.unlink(missing_ok=True)
    return mark.exists


CPU = ("--device", "cpu")
READERS: dict[str, tuple[str, Sequence[str]]] = {
    "evaluate": ("train", ("--out", "OUT", "--limit", "20", "--samples", "2", *CPU)),
    "evaluate a table": ("table", ("--out", "OUT", "--samples", "2", *CPU)),
    "predict": ("train", ("digits", "--out", "OUT.csv", "--samples", "2", *CPU)),
    "predict a table": ("table", ("TABLE", "--out", "OUT.csv", "--samples", "2", *CPU)),
    "probe": ("pretrain", ("--out", "OUT", "--samples", "2", "--fit-samples", "1", "--k", "5", *CPU)),
    "explore": ("train", ("--what", "layers", "--out", "OUT", *CPU)),
    "prune": ("train", ("--out", "OUT")),
    "report": (
        "train",
        ("--out", "OUT", "--limit", "20", "--samples", "2", "--shift", "none", "--cache", "CACHE", *CPU),
    ),
    "reproduce": ("pretrain", ("byov/figure7", "--out", "OUT", "--scale", "quick", *CPU)),
}


@pytest.mark.parametrize("command", READERS)
def test_a_command_imports_nothing_of_a_run_unasked(
    call: Any, made: Made, imported: Callable[[], bool], command: str, tmp_path: Path
) -> None:
    (runs, table, _), (kind, words) = made, READERS[command]
    verb = command.split()[0]
    places = {"OUT": tmp_path / "out", "OUT.csv": tmp_path / "out.csv", "TABLE": table, "CACHE": tmp_path / "cache"}
    named = ["--run", runs[kind]] if verb == "reproduce" else [runs[kind]]
    given = [verb, *named, *(places.get(word, word) for word in words)]
    status, _, said = call(*given)
    assert status == 2
    assert said.startswith(f"byov: {runs[kind] / 'checkpoint.safetensors'} names code to import, model.")
    assert said.count("\n") == 1
    assert "--trust" in said
    assert not imported()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    status, _, said = call(*given, "--trust")
    assert status == 0, said
    assert imported()


def test_python_says_trust_too(made: Made, imported: Callable[[], bool]) -> None:
    runs, _, _ = made
    with pytest.raises(ValueError, match=r"model\.name = python:theirs:network: add --trust"):
        open_run(runs["train"])
    assert not imported()
    assert open_run(runs["train"], Reading(trust=True)).kind == "train"
    assert imported()


def test_resuming_takes_the_user_s_own_recipe_at_its_word(made: Made, imported: Callable[[], bool]) -> None:
    runs, _, _ = made
    own = ["posterior.family=gaussian", "model.name=python:theirs:network"]
    recipe = load_config(Supervised, None, [*SHORT, *SMALL, *own])
    assert train(recipe, runs["train"], resume=True)
    assert imported()
