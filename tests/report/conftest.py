"""Tiny runs, made once: BYOL, BYOV with two seeds, and a classifier, in folders whose names are hard to quote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import time
from typing import Any

import pytest

from byov.report.collect import Request
from byov.report.page import report
from byov.runs import Reading
from byov.ssl import pretrain
from byov.train import supervised
from byov.train.config import load_config

from .reading import Page

SMALL = ["train.epochs=2", "train.warmup=0", "train.accelerator=cpu", "train.devices=1", "train.log_every=2"]
PRETRAIN = [*SMALL, "model.encoder=convnet32", "model.hidden=16", "model.outputs=8"]
READING = Reading(samples=3, limit=80, fit_samples=1)
REQUEST = Request(READING, severities=(3, 5))
Pair = tuple[Path, dict[str, Any]]
NAMES = {"byol": "byol", "byov": "byov <b>&\"'", "byov2": "byov {{ 7*7 }}"}


@pytest.fixture(autouse=True, scope="session")
def one_day() -> Iterator[None]:
    """Let midnight not come between two pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", str(int(time())))
        yield


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    paths = {key: folder / name for key, name in NAMES.items()}
    for key, path in paths.items():
        posterior = [f"posterior.family={'none' if key == 'byol' else 'gaussian'}"]
        seed = ["train.seed=1"] if key == "byov2" else []
        assert pretrain.start(load_config(pretrain.Pretrain, None, [*PRETRAIN, *posterior, *seed]), path)
    paths["train"] = folder / "classifier"
    assert supervised.start(load_config(supervised.Supervised, None, [*SMALL, "posterior.family=emp"]), paths["train"])
    return paths


@pytest.fixture(scope="session")
def pair(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The page of BYOL and BYOV, and the numbers it was made from."""
    out = tmp_path_factory.mktemp("page") / "report.html"
    return out, report([runs["byol"], runs["byov"]], out, REQUEST)


@pytest.fixture
def tree(pair: Pair) -> dict[str, Any]:
    return pair[1]


@pytest.fixture
def page(pair: Pair) -> Page:
    return Page(pair[0].read_text(encoding="utf-8"))
