"""One thread and one seed for every test: the same numbers everywhere, and workers that do not fight for cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

# Before torch: some virtual machines announce matrix tiles (AMX) that they do not have, and bfloat16 ends the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


SHORT = ["train.epochs=1", "train.warmup=0", "train.accelerator=cpu", "train.devices=1", "data.holdout=0.8"]
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `byov WORDS…` in this process; what it returns is its status, stdout and stderr."""
    from byov.cli import main

    monkeypatch.setenv("COLUMNS", "200")

    def command(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["byov", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return command


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of one epoch on a fifth of the digits: byov, byol, bbb, and plain without a posterior."""
    from byov.ssl.pretrain import Pretrain
    from byov.ssl.pretrain import start as pretrain
    from byov.train.config import load_config
    from byov.train.supervised import Supervised
    from byov.train.supervised import start as train

    folder, recipes = tmp_path_factory.mktemp("digits"), Path(__file__).parents[1] / "recipes"
    for name in ("byov", "byol"):
        assert pretrain(load_config(Pretrain, recipes / f"digits_{name}.toml", SHORT), folder / name)
    for name, more in (("bbb", []), ("plain", ["posterior.family=none"])):
        assert train(load_config(Supervised, recipes / "digits_train.toml", [*SHORT, *more]), folder / name)
    return folder
