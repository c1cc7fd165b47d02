"""The README.md of a finished run: its command makes the same recipe, its Python runs, a user's own is left alone."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from byov.runs import read_header
from byov.ssl import pretrain
from byov.train import supervised, tabular
from byov.train.config import load_config, to_dict
from byov.train.readme import MARK

SMALL = ["train.epochs=1", "train.warmup=0", "train.accelerator=cpu", "train.devices=1", "train.log_every=1"]
KINDS: dict[str, tuple[Any, Any, list[str]]] = {
    "pretrain": (pretrain, pretrain.Pretrain, ["model.encoder=convnet32", "model.hidden=8", "model.outputs=4"]),
    "train": (supervised, supervised.Supervised, ["model.name=convnet16", "posterior.family=emp", "data.holdout=0.25"]),
    "table": (tabular, tabular.Tabular, ["data.name=table:rows.csv", "model.hidden=4", "train.batch=8"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_says_how_it_was_made_and_used(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n" + "".join(f"{i},{i * i % 7}\n" for i in range(40)))
    monkeypatch.chdir(tmp_path)
    module, recipe, changes = KINDS[kind]
    run = tmp_path / "a run"
    assert module.start(load_config(recipe, None, [*SMALL, *changes]), run)
    text = (run / "README.md").read_text()
    assert text.startswith(MARK)
    [command] = re.findall(r"^    byov (?:.*\\\n)*.*", text, re.MULTILINE)
    words = shlex.split(command.replace("\\\n", ""))
    assert words[:4] == ["byov", "pretrain" if kind == "pretrain" else "train", "--run", str(run)]
    assert to_dict(load_config(recipe, None, words[5::2])) == read_header(run, [kind]).config
    [following] = re.findall(r"^Next: `byov (.*?)`", text, re.MULTILINE)
    shift = [] if kind == "table" else ["--shift", "augmentations"]
    assert shlex.split(following) == ["evaluate", str(run), *shift, "--out", str(run / "results.json")]
    [block] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(block, names)
    found = names["found"] if kind == "pretrain" else names["prediction"].mean
    assert len(found) == (40 if kind == "table" else 450)


def test_an_unfinished_run_has_none(tmp_path: Path) -> None:
    module, recipe, changes = KINDS["train"]
    assert not module.start(load_config(recipe, None, [*SMALL, *changes, "train.minutes=1e-9"]), tmp_path)
    assert not (tmp_path / "README.md").exists()


def test_one_of_the_users_own_is_left_alone(tmp_path: Path) -> None:
    module, recipe, changes = KINDS["train"]
    (tmp_path / "README.md").write_text("mine")
    assert module.start(load_config(recipe, None, [*SMALL, *changes]), tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
