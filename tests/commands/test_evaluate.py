"""`byov evaluate`: the table and the file, rows that survive an interruption, sentences for bad input."""

import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Generator, Tensor, nn

import byov
from byov.data import load
from byov.data.corruptions import CORRUPTIONS
from byov.data.labelled import labelled
from byov.evaluation import Classifier, Probed, Row, evaluate, scores, summarise
from byov.evaluation.rows import plan
from byov.metrics import functional as metrics
from byov.posterior.random import stream
from byov.prediction import Prediction
from byov.runs.run import digest
from byov.ssl.classifiers import EXAMPLES
from byov.ssl.pretrain import Pretrain, restore, start
from byov.ssl.probe import READ, Probe, ProbeSettings
from byov.train.config import load_config

NETS = """
import torch, byov
from torch import nn

def plain(classes=10, pixels=64):
    torch.manual_seed(7)
    return nn.Sequential(nn.Flatten(), nn.Linear(pixels, 16), nn.ReLU(), nn.Linear(16, classes))

def bayes():
    return byov.bayesianize(plain(), byov.Gaussian(log_var=-4.0))

def reset():
    return byov.bayesianize(plain(), byov.Ensemble(2, start="reset"))

def copy():
    return byov.bayesianize(plain(), byov.Ensemble(2, start="copy", spread=0.1))

def random():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def five():
    return plain(5)

def larger():
    return plain(pixels=65)

def maps():
    return nn.Conv2d(1, 10, 1)

"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module of networks, as a user has one."""
    (tmp_path / "some_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    sys.modules.pop("some_nets", None)
    return tmp_path


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "byov"
    small = ["train.epochs=2", "train.warmup=0.5", "train.accelerator=cpu", "train.devices=1", "data.holdout=0.7"]
    recipe = load_config(Pretrain, Path(__file__).parents[2] / "recipes" / "digits_byov.toml", small)
    assert start(recipe, run)
    return run


def small(out: Path | str, *words: object) -> list[object]:
    return ["python:some_nets:bayes", "--data", "digits", "--limit", 60, "--samples", 3, "--out", out, *words]


def test_a_file_from_before_the_floor_is_continued(call, folder) -> None:
    words = small("r.json", "--shift", "corruptions", "--severities", "1")
    assert call("evaluate", *words)[0] == 0
    saved = json.loads((folder / "r.json").read_text())
    del saved["protocol"]["conventions"]["ece_floor"]
    saved["rows"] = saved["rows"][:3]
    for row in saved["rows"]:
        for reading in ("at_mean", "under_draws"):
            del row[reading]["ece_floor"]
    (folder / "r.json").write_text(json.dumps(saved))
    status, out, err = call("evaluate", *words)
    assert (status, err) == (0, "")
    assert "perfectly calibrated" not in out
    again = json.loads((folder / "r.json").read_text())
    assert len(again["rows"]) == 16
    assert "ece_floor" not in again["rows"][0]["at_mean"]
    assert "ece_floor" in again["rows"][-1]["at_mean"]


def test_command_prints_a_table_and_writes_the_protocol(call, folder, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    words = small("r.json", "--shift", "corruptions", "--severities", "1,5", "--bins", 10)
    status, out, err = call("evaluate", *words)
    assert (status, err) == (0, "")
    assert not [line for line in out.splitlines() if len(line) > 100]
    for words in ("clean", "jpeg compression", "mean of shifts", "draws", "AUROC", "harsher on 8", "…"):
        assert (words in out) != (words == "…"), words
    saved = json.loads((folder / "r.json").read_text())
    floors = [saved["rows"][0][reading]["ece_floor"] for reading in ("at_mean", "under_draws")]
    said = f"an ECE of {100 * floors[0]:.2f} % at μ, {100 * floors[1]:.2f} % under draws."
    assert said in " ".join(out.split())
    protocol, rows = saved["protocol"], [Row(**row) for row in saved["rows"]]
    assert saved["finished"]
    assert protocol["model"]["digest"] == digest(import_module("some_nets").bayes())
    assert protocol["data"]["images"] == 60
    assert (protocol["samples"], protocol["strategy"], protocol["seed"], protocol["bins"]) == (3, "loop", 0, 10)
    assert protocol["severities"] == [1, 5]
    assert protocol["versions"]["torch"] == torch.__version__
    assert "evaluate python:some_nets:bayes" in saved["environment"]["command"]
    assert saved["environment"]["seconds"] > 0
    assert [row.key for row in rows] == plan(CORRUPTIONS, (1, 5))
    order = torch.randperm(450, generator=Generator().manual_seed(0))[:60].sort().values
    data = load("digits", "test").subset(order)
    assert protocol["data"]["digest"] == data.digest
    assert rows == evaluate(
        import_module("some_nets").bayes(), data.images, data.labels, CORRUPTIONS, (1, 5), 3, bins=10
    )
    assert saved["summary"]["shifts"] == [asdict(row) for row in summarise(rows)]
    assert not list(folder.glob(".*partial"))


@pytest.mark.parametrize("start", ["reset", "copy"])
def test_the_mean_of_members_that_started_anew_is_said_to_be_no_network(call, folder, start) -> None:
    _, out, _ = call("evaluate", f"python:some_nets:{start}", *small("r.json")[1:])
    assert ("has no mean network" in out) == (start == "reset")


def test_an_interrupted_evaluation_continues_and_equals_an_uninterrupted_one(monkeypatch, call, folder) -> None:
    words = ["--shift", "augmentations", "--severities", "3"]
    assert call("evaluate", *small("whole.json", *words))[0] == 0
    found, calls = Classifier.__call__, []

    def stops(self: Classifier, images: Tensor, samples: int | None = None) -> Prediction:
        calls.append(samples)
        if len(calls) == 10:
            raise KeyboardInterrupt
        return found(self, images, samples)

    monkeypatch.setattr(Classifier, "__call__", stops)
    monkeypatch.setattr("byov.runs.run.Network.check", lambda self, data: None)
    assert call("evaluate", *small("parts.json", *words))[0] == 130
    part, whole = (json.loads((folder / name).read_text()) for name in ("parts.json", "whole.json"))
    assert not part["finished"]
    assert part["rows"] == whole["rows"][:4]  # a row takes two predictions, and the tenth was stopped
    seconds = part["environment"]["seconds"]
    calls[:] = [None] * 20
    assert call("evaluate", *small("parts.json", *words))[0] == 0
    assert len(calls) - 20 == 2 * (1 + len(whole["rows"]) - 4)  # the clean images again, then what was missing
    again = json.loads((folder / "parts.json").read_text())
    assert again["rows"] == whole["rows"]
    assert again["summary"] == whole["summary"]
    assert again["environment"]["seconds"] >= seconds
    calls[:] = [None] * 20
    before = (folder / "parts.json").read_bytes()
    shown = call("evaluate", *small("parts.json", *words))[1]
    assert ("mean of shifts" in shown, "hue is left out" in shown) == (True, True)
    assert len(calls) == 20  # a finished file is only shown
    assert (folder / "parts.json").read_bytes() == before


def test_another_protocol_is_refused_unless_forced(call, folder) -> None:
    assert call("evaluate", *small("r.json"))[0] == 0
    before = (folder / "r.json").read_bytes()
    for words, message in (
        (["--seed", 1], "seed = 0, not 1"),
        (["--samples", 4], "samples = 3, not 4"),
        (["--bins", 9], "bins = 15, not 9"),
        (["--limit", 61], "data.digest"),
        (["--shift", "corruptions"], 'shift = "none"'),
    ):
        status, _, err = call("evaluate", *small("r.json", *words))
        assert (status, message in err, "--force" in err) == (2, True, True), err
        assert (folder / "r.json").read_bytes() == before
    assert call("evaluate", "python:some_nets:random", *small("r.json")[1:])[0] == 2
    assert call("evaluate", *small("r.json", "--seed", 1, "--force"))[0] == 0
    assert json.loads((folder / "r.json").read_text())["protocol"]["seed"] == 1
    (folder / "mine.json").write_text("{}")
    assert "not a file of `byov evaluate`" in call("evaluate", *small("mine.json"))[2]
    assert (folder / "mine.json").read_text() == "{}"


def test_a_network_with_random_weights_is_the_same_one_for_the_same_seed(call, folder) -> None:
    for name in ("one.json", "two.json"):
        assert call("evaluate", "python:some_nets:random", *small(name)[1:])[0] == 0
    one, two = (json.loads((folder / name).read_text()) for name in ("one.json", "two.json"))
    assert (one["rows"], one["protocol"]) == (two["rows"], two["protocol"])
    assert one["protocol"]["samples"] is None  # a plain network has no draws
    assert one["rows"][0]["under_draws"] is None


def test_a_baseline_gives_corruption_errors(call, folder) -> None:
    words = ["--shift", "corruptions", "--severities", "1,5"]
    plain = ["python:some_nets:plain", *small("plain.json")[1:]]
    assert call("evaluate", *plain, *words)[0] == 0
    assert call("evaluate", *small("r.json", *words))[0] == 0
    status, out, _ = call("evaluate", *small("r.json", *words, "--baseline", "plain.json"))
    assert status == 0
    assert "of plain.json at μ" in out
    saved, base = (json.loads((folder / name).read_text()) for name in ("r.json", "plain.json"))

    def errors(content: dict, reading: str) -> dict[str, list[float]]:
        return {n: [1 - r[reading]["top1"] for r in content["rows"] if r["shift"] == n] for n in CORRUPTIONS}

    for reading in ("at_mean", "under_draws"):
        value = metrics.mean_corruption_error(errors(saved, reading), errors(base, "at_mean")).item()
        assert saved["summary"]["corruption_errors"][reading]["mCE"] == pytest.approx(value)
    assert saved["summary"]["corruption_errors"]["at_mean"]["mCE"] == pytest.approx(100)  # the same means
    assert saved["summary"]["baseline"]["model"]["name"] == "python:some_nets:plain"
    for more, message in (
        (["--shift", "corruptions", "--baseline", "plain.json"], "severities = [1, 5]"),
        (["--shift", "augmentations", "--baseline", "plain.json"], "--shift corruptions"),
        ([*words, "--baseline", "none.json"], "no file of results"),
        ([*words, "--limit", 50, "--baseline", "plain.json"], "data.digest"),
    ):
        status, _, err = call("evaluate", *small("other.json", *more))
        assert (status, message in err) == (2, True), err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "digit"], "did you mean digits"),
        (["--data", "npz:unlabelled.npz", "--split", "train"], "no labels"),
        (["--data", "npz:empty.npz", "--split", "train"], "none of them 0"),
        (["--data", "digits", "--samples", "0"], "samples is at least 1"),
        (["--data", "digits", "--limit", "0"], "at least one image"),
        (["--data", "digits", "--bins", "100000000000"], "bins lie between 1 and 100,000"),
        (["--data", "digits", "--severities", "1-9999999999"], "Severities run from 1 to 5"),
        (["--data", "digits", "--split", "dev"], "splits train, test"),
        (["--data", "digits", "--severities", "0-5"], "1 to 5"),
        (["--data", "digits", "--shift", "fog"], "corruptions, not 'fog'"),
        (["--data", "digits", "--strategy", "quick"], "vmap, not 'quick'"),
        (["--data", "digits", "--bins", "0"], "bins"),
        (["--data", "digits", "--precision", "16"], "32-true or bf16-mixed, not '16'"),
        (["--data", "digits", "--device", "abacus"], "no device 'abacus'"),
        (["--data", "digits", "--out", "."], "a folder"),
        (["--data", "digits", "--out", "/dev/full", "--force"], "/dev/full is a device or a pipe"),
        (["--data", ""], "an empty argument after --data"),
        (["--data", "npz:a\x1b[31m\nb"], r"a\x1b[31m\nb"),
        ([], "--data NAME"),
        (["five", "--data", "digits"], "5 outputs, but digits has 10 classes"),
        (["larger", "--data", "digits"], "cannot take images of 1×8×8"),
        (["maps", "--data", "digits"], "logits (N, C)"),
    ],
)
def test_command_tells_bad_input_in_one_sentence(call, folder, words, message) -> None:
    np.savez(folder / "unlabelled.npz", train_images=np.zeros((3, 8, 8), np.uint8))
    np.savez(folder / "empty.npz", train_images=np.zeros((0, 8, 8), np.uint8))
    name, rest = ("bayes", words) if not words or words[0].startswith("-") else (words[0], words[1:])
    status, _, err = call("evaluate", f"python:some_nets:{name}", *rest)
    assert (status, message in err, "Traceback" in err) == (2, True, False), err
    assert not (folder / "results.json").exists()


def pictures(root: Path, split: str, classes: int, each: int) -> None:
    chance = np.random.default_rng(classes)
    for label in range(classes):
        (root / split / str(label)).mkdir(parents=True)
        for i in range(each):
            pixels = chance.integers(0, 256, (12, 10, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / split / str(label) / f"{i}.png")


def test_a_folder_is_resized_and_standardised_as_asked(call, folder, run_folder) -> None:
    pictures(folder / "set", "train", 5, 3)
    pictures(folder / "set", "test", 5, 2)
    words = ["--data", "folder:set", "--image-size", 8, "--channels", 1, "--normalise", "--out", "r.json"]
    assert "A temperature is for the probe" in call("evaluate", "python:some_nets:five", *words, "--temper")[2]
    status, _, err = call("evaluate", "python:some_nets:five", *words)
    assert (status, err) == (0, "")
    saved = json.loads((folder / "r.json").read_text())
    train, test = (labelled("folder:set", split, None, 1, 8) for split in ("train", "test"))
    assert test.images.shape == (10, 1, 8, 8)
    assert saved["protocol"]["data"]["digest"] == test.digest
    torch.manual_seed(7)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 5))
    with torch.no_grad():
        probs = net((test.images / 255 - train.mean[0]) / train.std[0]).softmax(1)
    assert saved["rows"][0]["at_mean"]["nll"] == pytest.approx(metrics.nll(probs, test.labels).item(), abs=1e-5)
    pictures(folder / "odd", "train", 3, 4)
    pictures(folder / "odd", "test", 2, 2)
    said = call("evaluate", run_folder, "--data", "folder:odd", "--out", "odd.json")[2]
    assert "different classes (3 and 2)" in said


def test_half_the_precision_is_asked_for_and_said(call, folder, run_folder) -> None:
    for model, *words in (("python:some_nets:bayes", "--data", "digits"), (run_folder, "--train-limit", 120)):
        saved = {}
        for precision in ("32-true", "bf16-mixed"):
            out = f"{words[0]}-{precision}.json".lstrip("-")
            more = [*words, "--limit", 60, "--samples", 2, "--out", out, "--precision", precision]
            status, _, err = call("evaluate", model, *more)
            assert (status, err) == (0, "")
            saved[precision] = json.loads((folder / out).read_text())
        full, half = (saved[p]["rows"][0] for p in ("32-true", "bf16-mixed"))
        assert [saved[p]["protocol"]["precision"] for p in saved] == [None, "bf16-mixed"]
        for reading in ("at_mean", "under_draws"):
            assert half[reading]["nll"] != full[reading]["nll"]
            assert half[reading]["nll"] == pytest.approx(full[reading]["nll"], rel=0.1)


# A pretraining run


def test_a_run_is_read_without_labels_too_and_an_older_file_takes_it_up(call, folder, run_folder) -> None:
    words = [run_folder, "--samples", 3, "--train-limit", 120, "--limit", 100, "--out", "r.json"]
    status, out, _ = call("evaluate", *words)
    assert status == 0
    saved = json.loads((folder / "r.json").read_text())
    found = saved["representation"]
    module, _ = restore(run_folder)
    test = load("digits", "test").subset(torch.randperm(450, generator=Generator().manual_seed(0))[:100].sort().values)
    options = {"mean": module.views.mean, "std": module.views.std}
    embeddings = byov.features(module, test.images, **options)
    made = byov.representation_uncertainty(module, test.images, 3, Generator().manual_seed(stream(0, READ)), **options)
    share = metrics.recall_at_1(embeddings, test.labels).item()
    assert found["r_at_1"] == pytest.approx([share, (share * (1 - share) / 100) ** 0.5])
    assert set(found["r_auroc"]) == set(made.measures) > {"spread_encoder", "variance_predictor", "negative_norm"}
    for name, values in made.measures.items():
        assert found["r_auroc"][name][0] == pytest.approx(metrics.r_auroc(values, embeddings, test.labels).item())
    assert f"R@1 {100 * share:.2f} %; R-AUROC by spread, encoder 0." in " ".join(out.split())
    before = (folder / "r.json").read_bytes()
    assert call("evaluate", *words)[0] == 0
    assert (folder / "r.json").read_bytes() == before

    del saved["representation"], saved["protocol"]["conventions"]["representation"]  # a file older than they are
    (folder / "r.json").write_text(json.dumps(saved))
    assert call("evaluate", *words)[0] == 0
    again = json.loads((folder / "r.json").read_text())
    assert (again["representation"], again["rows"]) == (found, saved["rows"])
    for more in (["--samples", 1], ["--limit", 1]):
        assert call("evaluate", *words, *more, "--force")[0] == 0


def test_a_run_is_read_by_a_probe_on_its_own_encoder(call, folder, run_folder) -> None:
    words = ["--samples", 3, "--fit-samples", 1, "--train-limit", 120, "--limit", 100, "--out", "r.json"]
    status, out, err = call("evaluate", run_folder, *words)  # the data are those of the recipe
    assert (status, err) == (0, "")
    assert "on digits test, 100 images, 3 draws" in " ".join(out.split())
    saved = json.loads((folder / "r.json").read_text())
    module, _ = restore(run_folder)
    chance = [torch.randperm(size, generator=Generator().manual_seed(0)) for size in (1347, 450)]
    train = load("digits").subset(chance[0][:120].sort().values)
    test = load("digits", "test").subset(chance[1][:100].sort().values)
    assert saved["protocol"]["model"]["digest"] == digest(module)
    assert saved["protocol"]["train"] == {"digest": train.digest, "images": 120}
    settings = ProbeSettings(k=120, draws_fit=1, draws_read=3)
    views = {"mean": module.views.mean, "std": module.views.std}
    probe = Probe.fit(module, train.images, train.labels, 10, settings, **views)
    for reading, draws in (("at_mean", None), ("under_draws", 3)):
        expected = scores(probe.predict(test.images, draws), test.labels)
        assert saved["rows"][0][reading] == pytest.approx(expected, abs=1e-6)
    assert saved["rows"][0]["at_mean"]["top1"] > 0.3  # chance is 0.1
    assert Probed(probe).posterior
    warm = [*words[:-1], "warm.json", "--temper"]
    assert call("evaluate", run_folder, *warm)[0] == 0
    tempered = json.loads((folder / "warm.json").read_text())
    assert tempered["protocol"]["model"]["probe"]["temper"] == EXAMPLES
    assert set(tempered["environment"]["temperatures"]) == {"at_mean", "under_draws"}
    assert "temper" not in saved["protocol"]["model"]["probe"]  # as in files that are older than it
    for reading in ("at_mean", "under_draws"):
        one, other = saved["rows"][0][reading], tempered["rows"][0][reading]
        assert one["top1"] == other["top1"]
        assert one["nll"] != other["nll"]
    assert "its strategy is loop" in call("evaluate", run_folder, *words, "--strategy", "vmap")[2]
    assert "1 channels and 8 pixels" in call("evaluate", run_folder, *words, "--image-size", 32)[2]
