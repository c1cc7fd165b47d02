"""`byov explore`: what it writes, that the same seed writes the same, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from byov.data.augmentations import augment
from byov.evaluation import noise_variance
from byov.evaluation.alignment import predictive_std
from byov.evaluation.convergence import convergence
from byov.evaluation.explore import explore
from byov.evaluation.retrieval import run_measures
from byov.report.figures import EXPLORED
from byov.runs import Reading, open_run
from byov.runs.run import Pretrained
from byov.ssl.pretrain import Pretrain, start
from byov.train.config import load_config

SHORT = ["train.epochs=1", "train.warmup=0", "train.accelerator=cpu", "train.devices=1"]
FEW = ("--samples", "3", "--bootstraps", "4", "--limit", "40", "--train-limit", "80", "--device", "cpu")


def test_all_that_applies_is_written_and_nothing_is_overwritten(runs: Path, tmp_path: Path, call: Any) -> None:
    code, out, err = call("explore", runs / "byov", runs / "byol", runs / "bbb", *FEW, "--out", tmp_path)
    assert (code, err) == (0, "")
    written = {path.name for path in tmp_path.iterdir()}
    there = ("layers", "convergence", "noise", "alignment", "gallery", "representation")
    assert written == {f"{name}.{kind}" for name in there for kind in ("json", "png", "svg")}
    assert "humans is left out: People's votes are available only for CIFAR-10" in out

    content = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in there}
    assert set(content["layers"]["result"]) == {"byov", "bbb"}  # BYOL has no posterior
    assert set(content["noise"]["result"]) == {"byov"}  # and no parts to follow noise through has a classifier
    assert set(content["representation"]["result"]) == {"byov", "byol"}
    assert set(content["gallery"]["result"]) == {"byov", "byol", "bbb"}
    assert (content["alignment"]["result"]["first"], content["alignment"]["result"]["second"]) == ("byov", "bbb")
    assert content["convergence"]["result"]["byov"]["clean"]["draws"] == [1, 2, 3]
    protocol = content["convergence"]["protocol"]
    assert (protocol["settings"]["samples"], protocol["runs"]["byov"]["data"]["images"]) == (3, 40)
    bands = [text.get_text() for text in EXPLORED["gallery"](content["gallery"]["result"]).axes[0].texts]
    assert sum(" nats; accuracy in this tenth" in text for text in bands) == 6  # both ends of three runs
    assert EXPLORED["convergence"](content["convergence"]["result"]).get_suptitle() == (
        "Probability of the predicted class"
    )

    again = ("explore", runs / "byov", runs / "byol", runs / "bbb", "--what", "noise", *FEW, "--out", tmp_path)
    assert "noise.json exists: choose another --out, or add --force." in call(*again)[2]
    before = (tmp_path / "noise.json").read_bytes()
    assert call(*again, "--force")[0] == 0
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


def test_noise_and_shifts_meet_the_network_as_it_was_trained(runs: Path) -> None:
    run = open_run(runs / "byov", Reading(samples=3, limit=20, train_limit=60), "byov")
    assert run.normalisation["mean"] is not None
    wanted = noise_variance(run.q, run.pixels, samples=3, **run.normalisation)  # type: ignore[arg-type]
    made = explore("noise", [run])["byov"]
    assert np.array(made["variance"]) == pytest.approx(np.array(wanted.variance), rel=1e-4)
    shifted = augment(run.pixels, "contrast", 3, torch.Generator().manual_seed(0))
    expected = convergence(run.draws(shifted), range(1, 4), bootstraps=4)
    made = explore("convergence", [run], bootstraps=4)["byov"]["contrast"]
    assert np.array(made["mean"]) == pytest.approx(np.array(expected.mean), rel=1e-4)


def test_a_representation_is_read_beside_foreign_images(runs: Path, call: Any, tmp_path: Path) -> None:
    random, name = np.random.default_rng(0), f"npz:{tmp_path / 'noise.npz'}"
    images = random.integers(0, 256, size=(30, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "noise.npz", test_images=images, test_labels=random.integers(0, 3, 30))
    words = ("--what", "representation", *FEW, "--out", tmp_path / "out", "--ood", name)
    assert call("explore", runs / "byov", runs / "byol", *words)[0] == 0
    content = json.loads((tmp_path / "out" / "representation.json").read_text())
    assert content["protocol"]["settings"]["ood"] == name
    assert {run: each["posterior"] for run, each in content["result"].items()} == {"byov": True, "byol": False}
    for each in content["result"].values():
        assert {name: read["images"] for name, read in each["data"].items()} == {"digits": 40, "npz:noise": 30}
        assert set(each["ood"]["npz:noise"]) == set(each["data"]["digits"]["r_auroc"])
    made = EXPLORED["representation"](content["result"])
    assert [axes.get_title() for axes in made.axes] == ["digits", "", "npz:noise", "npz:noise against digits"]


def test_people_are_compared_with_what_it_knows_without_labels(tmp_path: Path) -> None:
    """On made-up pictures and votes under CIFAR-10's name: each measure's rank correlation is scipy's."""
    random, splits = np.random.default_rng(0), ("train", "test")
    arrays = {f"{split}_images": random.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8) for split in splits}
    np.savez(tmp_path / "cifar10.npz", **arrays, **{f"{split}_labels": np.arange(60) % 10 for split in splits})
    votes = random.integers(1, 50, (60, 10))
    np.savez(tmp_path / "cifar10h.npz", counts=votes)
    settings = ["data.name=cifar10", f"data.root={tmp_path}", "data.holdout=0", "model.encoder=convnet16"]
    settings += ["model.hidden=16", "model.outputs=8", "train.batch=20"]
    assert start(load_config(Pretrain, None, [*SHORT, *settings]), tmp_path / "run")
    run = open_run(tmp_path / "run", Reading(samples=3, root=tmp_path, fit_samples=1, limit=40), "run")
    assert isinstance(run, Pretrained)
    made = explore("humans", [run], 4)
    found = made["run"]["spearman"]
    _, measures = run_measures(run, run.images.images)
    assert set(measures) | {"entropy_at_mean", "std"} <= set(found)
    votes = votes[run.places.numpy()]
    share = votes / votes.sum(1, keepdims=True)
    people = -(share * np.log(share)).sum(1)
    assert len(EXPLORED["humans"](made).axes[0].get_xticklabels()) == len(found)
    for name, values in measures.items():
        assert found[name][0] == pytest.approx(spearmanr(values.numpy(), people).statistic)


def test_bad_input_ends_in_one_sentence(runs: Path, tmp_path: Path, call: Any) -> None:
    (tmp_path / "file").write_text("")
    cases = {
        "--what must be layers": (runs / "byov", "--what", "nonsense"),
        "There is no run at": (tmp_path / "nowhere",),
        "of byov pretrain with a posterior": (runs / "bbb", "--what", "noise"),
        "Convergence needs a run with a posterior": (runs / "byol", "--what", "convergence"),
        "Layers need a run with a posterior": (runs / "byol", "--what", "layers"),
        "give both": (runs / "byov", "--what", "alignment"),
        "Representation needs a run of byov pretrain": (runs / "bbb", "--what", "representation"),
        "--ood is only for --what representation": (runs / "byov", "--what", "gallery", "--ood", "digits"),
        "--ood needs other images": (runs / "byol", "--what", "representation", "--ood", "digits"),
        "A data set's prefix is": (runs / "byol", "--ood", "nonsense:x"),
        "is not a readable": (runs / "byol", "--ood", f"npz:{tmp_path}/missing.npz"),
        "only for CIFAR-10": (runs / "byov", "--what", "humans"),
        "at least two draws": (runs / "byov", "--samples", "1"),
        "at least 8 images": (runs / "byov", "--limit", "3"),
        "is given twice": (runs / "byov", runs / "byov"),
        "There is no device": (runs / "byov", "--device", "nothing"),
    }
    for words, arguments in cases.items():
        code, out, err = call("explore", *arguments, "--out", tmp_path / "new")
        assert (code, out, words in err, "Traceback" in err) == (2, "", True, False), err
        assert not (tmp_path / "new").exists()
    said = call("explore", runs / "byov", "--out", tmp_path / "file")[2]
    assert "is a file: --out takes the name of a folder" in said
