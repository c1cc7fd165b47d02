"""`byov explore`: what it writes, that the same seed writes the same, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byov.evaluation.alignment import predictive_std
from byov.evaluation.explore import explore
from byov.runs import Reading, open_run

FEW = ("--samples", "3", "--bootstraps", "4", "--limit", "40", "--train-limit", "80", "--device", "cpu")


def test_all_that_applies_is_written_and_nothing_is_overwritten(runs: Path, tmp_path: Path, call: Any) -> None:
    code, out, err = call("explore", runs / "byov", runs / "byol", runs / "bbb", *FEW, "--out", tmp_path)
    assert (code, err) == (0, "")
    written = {path.name for path in tmp_path.iterdir()}
    there = ("layers", "convergence", "noise", "alignment", "gallery", "representation")
    assert written == {f"{name}.{kind}" for name in there for kind in ("json", "png", "svg")}
    assert "humans is left out: People's votes are at hand for CIFAR-10 only" in out

    content = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in there}
    assert set(content["layers"]["result"]) == {"byov", "bbb"}  # BYOL has no posterior
    assert set(content["noise"]["result"]) == {"byov"}  # and no parts to follow noise through has a classifier
    assert set(content["representation"]["result"]) == {"byov", "byol"}
    assert set(content["gallery"]["result"]) == {"byov", "byol", "bbb"}
    assert (content["alignment"]["result"]["first"], content["alignment"]["result"]["second"]) == ("byov", "bbb")
    assert content["convergence"]["result"]["byov"]["clean"]["draws"] == [1, 2, 3]
    protocol = content["convergence"]["protocol"]
    assert (protocol["settings"]["samples"], protocol["runs"]["byov"]["data"]["images"]) == (3, 40)

    said = call("explore", runs / "byov", "--what", "gallery", *FEW, "--out", tmp_path)[2]
    assert "gallery.json exists: choose another --out, or say --force." in said
    before = (tmp_path / "noise.json").read_bytes()
    code, _, _ = call(
        "explore", runs / "byov", runs / "byol", runs / "bbb", "--what", "noise", *FEW, "--out", tmp_path, "--force"
    )
    assert code == 0
    assert (tmp_path / "noise.json").read_bytes() == before


def test_the_numbers_are_those_of_the_draws(runs: Path) -> None:
    """The predictive std of both kinds of run; that it is of the draws, `tests/runs` checks."""
    reading = Reading(samples=5, limit=30, train_limit=100)
    first, second = open_run(runs / "byov", reading), open_run(runs / "bbb", reading)
    made = explore("alignment", [first, second])
    assert made["alignment"][0]["first"] == pytest.approx(predictive_std(first.prediction.std).tolist(), rel=1e-5)
    assert made["alignment"][0]["second"] == pytest.approx(predictive_std(second.prediction.std).tolist(), rel=1e-5)
    correlation = np.corrcoef(made["alignment"][0]["first"], made["alignment"][0]["second"])[0, 1]
    assert made["alignment"][0]["pearson"] == pytest.approx(correlation)


def test_bad_input_ends_in_one_sentence(runs: Path, tmp_path: Path, call: Any) -> None:
    (tmp_path / "file").write_text("")
    cases = {
        "--what is layers": (runs / "byov", "--what", "nonsense"),
        "There is no run at": (tmp_path / "nowhere",),
        "of byov pretrain with a posterior": (runs / "bbb", "--what", "noise"),
        "which convergence needs": (runs / "byol", "--what", "convergence"),
        "None of the runs has a posterior, whose layers": (runs / "byol", "--what", "layers"),
        "give both": (runs / "byov", "--what", "alignment"),
        "None of the runs is of byov pretrain, whose embeddings": (runs / "bbb", "--what", "representation"),
        "--ood names the foreign images": (runs / "byov", "--what", "gallery", "--ood", "digits"),
        "CIFAR-10 only": (runs / "byov", "--what", "humans"),
        "at least two draws": (runs / "byov", "--samples", "1"),
        "at least 8 images": (runs / "byov", "--limit", "3"),
        "is named twice": (runs / "byov", runs / "byov"),
        "There is no device": (runs / "byov", "--device", "nothing"),
    }
    for words, arguments in cases.items():
        code, out, err = call("explore", *arguments, "--out", tmp_path / "new")
        assert (code, out, words in err, "Traceback" in err) == (2, "", True, False), err
        assert not (tmp_path / "new").exists()
    said = call("explore", runs / "byov", "--out", tmp_path / "file")[2]
    assert "is a file: --out takes the name of a folder" in said
