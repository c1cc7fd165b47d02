"""`byov evaluate`: the table and the file, rows that survive an interruption, and what its options change."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import some_nets
import torch
from PIL import Image
from torch import Generator, Tensor

from byov.data import load
from byov.data.corruptions import CORRUPTIONS
from byov.data.labelled import labelled
from byov.evaluation import Classifier, Probed, Row, evaluate, scores, summarise
from byov.evaluation.rows import plan
from byov.metrics import functional as metrics
from byov.prediction import Prediction
from byov.runs.run import digest
from byov.ssl.classifiers import EXAMPLES
from byov.ssl.features import features
from byov.ssl.pretrain import restore
from byov.ssl.probe import Probe, ProbeSettings

READINGS = ("at_mean", "under_draws")
SMALL = ("--data", "digits", "--limit", 60, "--samples", 3)
Evaluated = Callable[..., tuple[dict[str, Any], str]]


@pytest.fixture
def evaluated(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluated:
    """Evaluate a model in an empty folder; return what was written to the file and what was printed."""
    monkeypatch.chdir(tmp_path)

    def command(model: object, out: str, *words: object) -> tuple[dict[str, Any], str]:
        model = f"python:some_nets:{model}" if isinstance(model, str) else model
        status, shown, err = call("evaluate", model, *words, "--out", out)
        assert (status, err) == (0, "")
        return json.loads((tmp_path / out).read_text()), shown

    return command


def some_digits(split: str, count: int) -> Any:
    """What --limit takes of the digits."""
    data = load("digits", split)
    return data.subset(torch.randperm(len(data), generator=Generator().manual_seed(0))[:count].sort().values)


def test_a_file_from_before_the_floor_is_continued(evaluated: Evaluated) -> None:
    words = (*SMALL, "--shift", "corruptions", "--severities", "1")
    saved, _ = evaluated("bayes", "r.json", *words)
    del saved["protocol"]["conventions"]["ece_floor"]
    saved["rows"] = saved["rows"][:3]
    for row in saved["rows"]:
        for reading in READINGS:
            del row[reading]["ece_floor"]
    Path("r.json").write_text(json.dumps(saved))
    again, shown = evaluated("bayes", "r.json", *words)
    assert "perfectly calibrated" not in shown
    assert len(again["rows"]) == 16
    assert "ece_floor" not in again["rows"][0]["at_mean"]
    assert "ece_floor" in again["rows"][-1]["at_mean"]


def test_it_prints_a_table_and_writes_the_protocol(evaluated: Evaluated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    saved, out = evaluated("bayes", "r.json", *SMALL, "--shift", "corruptions", "--severities", "1,5", "--bins", 10)
    assert not [line for line in out.splitlines() if len(line) > 100]
    for words in ("clean", "jpeg compression", "mean of shifts", "draws", "AUROC", "harsher on 8", "…"):
        assert (words in out) != (words == "…"), words
    floors = [saved["rows"][0][reading]["ece_floor"] for reading in READINGS]
    said = f"an ECE of {100 * floors[0]:.2f} % at μ, {100 * floors[1]:.2f} % under draws."
    assert said in " ".join(out.split())
    protocol, rows = saved["protocol"], [Row(**row) for row in saved["rows"]]
    assert saved["finished"]
    assert protocol["model"]["digest"] == digest(some_nets.bayes())
    assert (protocol["samples"], protocol["strategy"], protocol["seed"], protocol["bins"]) == (3, "loop", 0, 10)
    assert (protocol["severities"], protocol["versions"]["torch"]) == ([1, 5], torch.__version__)
    assert "evaluate python:some_nets:bayes" in saved["environment"]["command"]
    assert saved["environment"]["seconds"] > 0
    assert [row.key for row in rows] == plan(CORRUPTIONS, (1, 5))
    data = some_digits("test", 60)
    assert (protocol["data"]["images"], protocol["data"]["digest"]) == (60, data.digest)
    assert rows == evaluate(some_nets.bayes(), data.images, data.labels, CORRUPTIONS, (1, 5), 3, bins=10)
    assert saved["summary"]["shifts"] == [asdict(row) for row in summarise(rows)]
    assert not list(Path().glob(".*partial"))


@pytest.mark.parametrize("start", ["reset", "copy"])
def test_the_mean_of_members_that_started_anew_is_said_to_be_no_network(evaluated: Evaluated, start: str) -> None:
    assert ("has no mean network" in evaluated(start, "r.json", *SMALL)[1]) == (start == "reset")


def test_an_interrupted_evaluation_continues_and_equals_an_uninterrupted_one(
    monkeypatch: pytest.MonkeyPatch, call: Any, evaluated: Evaluated
) -> None:
    words = (*SMALL, "--shift", "augmentations", "--severities", "3")
    whole, _ = evaluated("bayes", "whole.json", *words)
    found, calls = Classifier.__call__, []

    def stops(self: Classifier, images: Tensor, samples: int | None = None) -> Prediction:
        calls.append(samples)
        if len(calls) == 10:
            raise KeyboardInterrupt
        return found(self, images, samples)

    monkeypatch.setattr(Classifier, "__call__", stops)
    monkeypatch.setattr("byov.runs.run.Network.check", lambda self, data: None)
    assert call("evaluate", "python:some_nets:bayes", *words, "--out", "parts.json")[0] == 130
    part = json.loads(Path("parts.json").read_text())
    assert not part["finished"]
    assert part["rows"] == whole["rows"][:4]  # a row takes two predictions, and the tenth was stopped
    calls[:] = [None] * 20
    again, _ = evaluated("bayes", "parts.json", *words)
    assert len(calls) - 20 == 2 * (1 + len(whole["rows"]) - 4)  # the clean images again, then what was missing
    assert (again["rows"], again["summary"]) == (whole["rows"], whole["summary"])
    assert again["environment"]["seconds"] >= part["environment"]["seconds"]
    calls[:] = [None] * 20
    shown = evaluated("bayes", "parts.json", *words)
    assert ("mean of shifts" in shown[1], "hue is left out" in shown[1]) == (True, True)
    assert (shown[0], len(calls)) == (again, 20)  # a finished file is only shown


def test_another_protocol_is_refused_unless_forced(call: Any, evaluated: Evaluated) -> None:
    evaluated("bayes", "r.json", *SMALL)
    before = Path("r.json").read_bytes()
    for words, message in (
        (["--seed", 1], "seed = 0, not 1"),
        (["--samples", 4], "samples = 3, not 4"),
        (["--bins", 9], "bins = 15, not 9"),
        (["--limit", 61], "data.digest"),
        (["--shift", "corruptions"], 'shift = "none"'),
    ):
        status, _, err = call("evaluate", "python:some_nets:bayes", *SMALL, "--out", "r.json", *words)
        assert (status, message in err, "--force" in err) == (2, True, True), err
    assert call("evaluate", "python:some_nets:random", *SMALL, "--out", "r.json")[0] == 2
    assert Path("r.json").read_bytes() == before
    assert evaluated("bayes", "r.json", *SMALL, "--seed", 1, "--force")[0]["protocol"]["seed"] == 1
    Path("mine.json").write_text("{}")
    said = call("evaluate", "python:some_nets:bayes", *SMALL, "--out", "mine.json")[2]
    assert "not a file of `byov evaluate`" in said
    assert Path("mine.json").read_text() == "{}"


def test_a_network_with_random_weights_is_the_same_one_for_the_same_seed(evaluated: Evaluated) -> None:
    one, two = (evaluated("random", name, *SMALL)[0] for name in ("one.json", "two.json"))
    assert (one["rows"], one["protocol"]) == (two["rows"], two["protocol"])
    assert one["protocol"]["samples"] is None  # a plain network has no draws
    assert one["rows"][0]["under_draws"] is None


def test_a_baseline_gives_corruption_errors(call: Any, evaluated: Evaluated) -> None:
    words = (*SMALL, "--shift", "corruptions", "--severities", "1,5")
    base, _ = evaluated("plain", "plain.json", *words)
    saved, out = evaluated("bayes", "r.json", *words, "--baseline", "plain.json")
    assert "of plain.json at μ" in out

    def errors(content: dict[str, Any], reading: str) -> dict[str, list[float]]:
        return {n: [1 - r[reading]["top1"] for r in content["rows"] if r["shift"] == n] for n in CORRUPTIONS}

    for reading in READINGS:
        value = metrics.mean_corruption_error(errors(saved, reading), errors(base, "at_mean")).item()
        assert saved["summary"]["corruption_errors"][reading]["mCE"] == pytest.approx(value)
    assert saved["summary"]["corruption_errors"]["at_mean"]["mCE"] == pytest.approx(100)  # the same means
    assert saved["summary"]["baseline"]["model"]["name"] == "python:some_nets:plain"
    for more, message in (
        (["--severities", "1", "--baseline", "plain.json"], "severities = [1, 5]"),
        (["--shift", "augmentations", "--baseline", "plain.json"], "--shift corruptions"),
        (["--baseline", "none.json"], "no file of results"),
        (["--limit", 50, "--baseline", "plain.json"], "data.digest"),
    ):
        status, _, err = call("evaluate", "python:some_nets:bayes", *words, "--out", "other.json", *more)
        assert (status, message in err) == (2, True), err


def test_a_folder_is_resized_and_standardised_as_asked(evaluated: Evaluated, tmp_path: Path) -> None:
    chance = np.random.default_rng(5)
    for split, each in (("train", 3), ("test", 2)):
        for label in range(5):
            (tmp_path / "set" / split / str(label)).mkdir(parents=True)
            for i in range(each):
                pixels = chance.integers(0, 256, (12, 10, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "set" / split / str(label) / f"{i}.png")
    words = ("--data", "folder:set", "--image-size", 8, "--channels", 1, "--normalise")
    saved, _ = evaluated("five", "r.json", *words)
    train, test = (labelled("folder:set", split, None, 1, 8) for split in ("train", "test"))
    assert test.images.shape == (10, 1, 8, 8)
    assert saved["protocol"]["data"]["digest"] == test.digest
    with torch.no_grad():
        probs = some_nets.five()((test.images / 255 - train.mean[0]) / train.std[0]).softmax(1)
    assert saved["rows"][0]["at_mean"]["nll"] == pytest.approx(metrics.nll(probs, test.labels).item(), abs=1e-5)


@pytest.mark.parametrize("probed", [False, True])
def test_half_the_precision_is_asked_for_and_said(evaluated: Evaluated, runs: Path, probed: bool) -> None:
    model, words = (runs / "byov", ("--train-limit", 120)) if probed else ("bayes", ("--data", "digits"))
    both = []
    for precision in ("32-true", "bf16-mixed"):
        more = (*words, "--limit", 60, "--samples", 2, "--precision", precision)
        both.append(evaluated(model, f"{precision}.json", *more)[0])
    assert [saved["protocol"]["precision"] for saved in both] == [None, "bf16-mixed"]
    for full, half in ([saved["rows"][0][reading]["nll"] for saved in both] for reading in READINGS):
        assert half != full
        assert half == pytest.approx(full, rel=0.2)  # on 120 images, rounding may choose another λ


# A pretraining run

PROBED = ("--samples", 3, "--fit-samples", 1, "--train-limit", 120, "--limit", 100)


def test_a_run_is_read_without_labels_too_and_an_older_file_takes_it_up(evaluated: Evaluated, runs: Path) -> None:
    saved, out = evaluated(runs / "byov", "r.json", *PROBED)
    found = saved["representation"]
    module, _ = restore(runs / "byov")
    test = some_digits("test", 100)
    embeddings = features(module, test.images, mean=module.views.mean, std=module.views.std)
    share = metrics.recall_at_1(embeddings, test.labels).item()
    assert found["r_at_1"] == pytest.approx([share, (share * (1 - share) / 100) ** 0.5])
    assert set(found["r_auroc"]) > {"spread_encoder", "variance_predictor", "negative_norm"}
    assert f"R@1 {100 * share:.2f} %; R-AUROC: spread (encoder) 0." in " ".join(out.split())
    assert evaluated(runs / "byov", "r.json", *PROBED)[0] == saved

    del saved["representation"], saved["protocol"]["conventions"]["representation"]  # a file older than they are
    Path("r.json").write_text(json.dumps(saved))
    again, _ = evaluated(runs / "byov", "r.json", *PROBED)
    assert (again["representation"], again["rows"]) == (found, saved["rows"])
    for more in (["--samples", 1], ["--limit", 1]):
        evaluated(runs / "byov", "r.json", *PROBED, *more, "--force")


def test_a_run_is_read_by_a_probe_on_its_own_encoder(evaluated: Evaluated, runs: Path) -> None:
    saved, out = evaluated(runs / "byov", "r.json", *PROBED)  # the data are those of the recipe
    assert "on digits test, 100 images, 3 draws" in " ".join(out.split())
    module, _ = restore(runs / "byov")
    train, test = some_digits("train", 120), some_digits("test", 100)
    assert saved["protocol"]["model"]["digest"] == digest(module)
    assert saved["protocol"]["train"] == {"digest": train.digest, "images": 120}
    views = {"mean": module.views.mean, "std": module.views.std}
    probe = Probe.fit(module, train.images, train.labels, 10, ProbeSettings(k=120, draws_fit=1, draws_read=3), **views)
    assert Probed(probe).posterior
    for reading, draws in (("at_mean", None), ("under_draws", 3)):
        expected = scores(probe.predict(test.images, draws), test.labels)
        assert saved["rows"][0][reading] == pytest.approx(expected, abs=1e-6)
    assert saved["rows"][0]["at_mean"]["top1"] > 0.3  # chance is 0.1
    tempered, _ = evaluated(runs / "byov", "warm.json", *PROBED, "--temper")
    assert tempered["protocol"]["model"]["probe"]["temper"] == EXAMPLES
    assert set(tempered["environment"]["temperatures"]) == set(READINGS)
    assert "temper" not in saved["protocol"]["model"]["probe"]  # as in files that are older than it
    for reading in READINGS:
        one, other = saved["rows"][0][reading], tempered["rows"][0][reading]
        assert one["top1"] == other["top1"]
        assert one["nll"] != other["nll"]
