"""`byov predict`: its numbers, the files it writes, and the names it gives."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Generator

import byov
from byov.data import load
from byov.posterior.random import stream
from byov.runs import open_run
from byov.ssl.pretrain import restore as restore_pretrained
from byov.ssl.probe import Probe, ProbeSettings
from byov.train.config import load_config
from byov.train.supervised import Supervised, restore, start
from byov.train.tabular import Tabular
from byov.train.tabular import start as start_table

NUMBERS = ["confidence", "std", "entropy", "expected_entropy", "mutual_information"]
SMALL = ["train.epochs=1", "train.warmup=0", "train.accelerator=cpu", "train.devices=1"]
Predicted = Callable[..., tuple[Any, str, str]]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits in a folder without labels, and among them two files that are no images, one with a name of odd bytes."""
    folder = tmp_path_factory.mktemp("pictures")
    for i, image in enumerate(load("digits", "test").images[:120]):
        Image.fromarray(image[0].numpy()).save(folder / f"[{i:03}] a.png")
    (folder / os.fsdecode(b"[001] \xe9.png")).write_text("no image")
    (folder / "broken.png").write_text("no image")
    return folder


@pytest.fixture
def predicted(call: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Predicted:
    """Predict in an empty folder; return the rows or the arrays that were written, and what was printed."""
    monkeypatch.chdir(tmp_path)

    def command(out: str, *words: object) -> tuple[Any, str, str]:
        status, said, err = call("predict", *words, "--out", out)
        assert (status, "Traceback" in err) == (0, False), err
        if out.endswith(".npz"):
            with np.load(tmp_path / out) as found:
                return dict(found), said, err
        with (tmp_path / out).open(newline="") as file:
            return list(csv.DictReader(file)), said, err

    return command


@pytest.mark.parametrize("strategy", ["auto", "loop", "vmap"])
def test_the_numbers_are_those_of_byov_predict(runs: Path, predicted: Predicted, strategy: str) -> None:
    words = ("--samples", 12, "--strategy", strategy, "--seed", 3, "--device", "cpu")
    found, said, _ = predicted("p.csv", runs / "bbb", "digits", *words)
    module, _ = restore(runs / "bbb")
    test = load("digits", "test")
    x = (test.images.float() / 255 - module.augment.mean[0]) / module.augment.std[0]
    expected = byov.predict(module.net, x, 12, "loop", generator=Generator().manual_seed(stream(3, 1)))
    assert [row["input"] for row in found] == [str(i) for i in range(len(test))]
    assert [int(row["predicted"]) for row in found] == expected.mean.argmax(1).tolist()
    assert [int(row["label"]) for row in found] == test.labels.tolist()
    assert {row["draws"] for row in found} == {"12"}
    values = {name: torch.tensor([float(row[name]) for row in found]) for name in NUMBERS}
    confidence, place = expected.mean.max(1)
    torch.testing.assert_close(values["confidence"], confidence, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(values["std"], expected.std.gather(1, place[:, None])[:, 0], rtol=1e-3, atol=1e-5)
    for name in NUMBERS[2:]:
        torch.testing.assert_close(values[name], getattr(expected, name), rtol=1e-3, atol=1e-5)
    top1 = (expected.mean.argmax(1) == test.labels).float().mean().item()
    assert f"450 inputs, 12 draws each, top-1 {100 * top1:.2f} %" in said
    order = expected.entropy.argsort(descending=True)[:10].tolist()
    shown = [line.split()[0] for line in said.splitlines() if line.strip() and line.split()[0].isdigit()]
    assert shown[:3] == [str(i) for i in order[:3]]


def test_npz_has_every_probability_and_the_protocol(runs: Path, predicted: Predicted) -> None:
    words = (runs / "bbb", "digits", "--samples", 5)
    found, whole = predicted("p.npz", *words, "--batch-size", 100)[0], predicted("whole.npz", *words)[0]
    assert found["probabilities"].shape == found["probabilities_std"].shape == (450, 10)
    np.testing.assert_allclose(found["probabilities"].sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(found["probabilities"], whole["probabilities"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["confidence"], found["probabilities"].max(1))
    np.testing.assert_allclose(found["entropy"], found["expected_entropy"] + found["mutual_information"], atol=1e-5)
    protocol = json.loads(str(found["protocol"]))
    assert (protocol["samples"], protocol["model"]["posterior"]) == (5, True)
    assert found["class_names"].tolist() == [str(i) for i in range(10)]
    np.testing.assert_array_equal(found["label"], load("digits", "test").labels)


def test_a_probe_predicts_for_a_pretraining_run(runs: Path, predicted: Predicted) -> None:
    asked = (runs / "byov", "digits", "--samples", 3, "--fit-samples", 1)
    plain, tempered = predicted("p.npz", *asked)[0], predicted("warm.npz", *asked, "--temper")[0]
    module, _ = restore_pretrained(runs / "byov")
    train, test = load("digits", "train"), load("digits", "test")
    settings = ProbeSettings(k=200, draws_fit=1, draws_read=3)
    views: Any = {"mean": module.views.mean, "std": module.views.std}
    probe = Probe.fit(module, train.images, train.labels, 10, settings, **views)
    np.testing.assert_allclose(plain["probabilities"], probe.predict(test.images, 3).mean, rtol=1e-4, atol=1e-6)
    assert set(plain["draws"].tolist()) == {3}
    np.testing.assert_array_equal(plain["predicted"], tempered["predicted"])
    assert not np.allclose(plain["confidence"], tempered["confidence"], atol=1e-4)
    parts = tempered["expected_entropy"] + tempered["mutual_information"]
    np.testing.assert_allclose(tempered["entropy"], parts, atol=1e-5)


def test_it_shows_that_a_probe_is_fitted_before_a_picture_is_predicted(
    runs: Path, call: Any, predicted: Predicted, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int, int]] = []
    advance = nullcontext(lambda *now: told.append(now) if now not in told else None)
    monkeypatch.setattr("byov.commands.console.progress", lambda: advance)
    picture = next(pictures.glob("*020*"))
    _, said, _ = predicted("p.csv", runs / "byov", picture, "--samples", 2, "--fit-samples", 1)
    assert "\n1 input, 2 draws each" in said
    assert told == [("fitting the probe", 0, 1), ("predicting", 0, 1), ("predicting", 1, 1)]
    told.clear()
    for words, sentence in (((picture,), "p.csv exists"), (("none.png", "--force"), "There is no picture at none.png")):
        status, _, err = call("predict", runs / "byov", *words, "--out", "p.csv")
        assert (status, sentence in err, told) == (2, True, [])


def test_a_folder_of_images_gives_file_names(runs: Path, predicted: Predicted, pictures: Path) -> None:
    """As predicted from the arrays, but for what has no label; what is no image has an empty row at its place."""
    arrays = predicted("arrays.csv", runs / "plain", "digits")[0]
    names = [f"[{i:03}] a.png" for i in range(120)]
    for i, name in enumerate((str(pictures), f"folder:{pictures}")):
        found, said, err = predicted(f"{i}.csv", runs / "plain", name)
        assert [row["input"] for row in found] == [*names[:2], "[001] \\xe9.png", *names[2:], "broken.png"]
        for row in (found.pop(), found.pop(2)):
            assert {value for key, value in row.items() if key != "input"} == {""}
            assert f"{row['input']} cannot be read: cannot identify image file\n" in err
        assert "label" not in found[0]
        assert ("2 could not be read" in said, "top-1" in said) == (True, False)
        for row, other in zip(found, arrays, strict=False):
            assert float(row["confidence"]) == pytest.approx(float(other["confidence"]), rel=1e-4)
            assert (row["predicted"], row["draws"]) == (other["predicted"], "1")
    kept = predicted("p.npz", runs / "plain", pictures)[0]
    assert (len(kept["input"]), kept["unreadable"].tolist()) == (120, ["[001] \\xe9.png", "broken.png"])
    files = [pictures / name for name in names[20:23]]
    three = predicted("three.csv", runs / "plain", *files)[0]
    assert [row["input"] for row in three] == list(map(str, files))
    assert [row["predicted"] for row in three] == [row["predicted"] for row in arrays[20:23]]


def test_class_folders_have_labels_and_names_with_their_folder(predicted: Predicted, tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / "pets" / "val" / label).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (9, 10), (100 * i, 50, 200)).save(tmp_path / "pets" / "val" / label / f"{i}.jpg")
    found = predicted("p.csv", "python:some_nets:pets", "pets", "--image-size", 4)[0]
    assert [row["input"] for row in found] == ["val/cat/0.jpg", "val/cat/1.jpg", "val/dog/0.jpg", "val/dog/1.jpg"]
    assert [row["label"] for row in found] == ["cat", "cat", "dog", "dog"]
    assert all(row["predicted"] in ("cat", "dog") for row in found)


def test_images_that_are_not_square_are_read_as_they_were_trained_on(predicted: Predicted, tmp_path: Path) -> None:
    """Without data.image_size that is as they are, with it as squares; evaluate and predict agree."""
    noise = np.random.default_rng(0).integers(0, 256, (40, 12, 8), dtype=np.uint8)
    parts = {f"{split}_{name}": part for split in ("train", "test") for name, part in
             (("images", noise), ("labels", np.arange(40) % 2))}  # fmt: skip
    np.savez(tmp_path / "set.npz", **parts)
    name = f"npz:{tmp_path / 'set.npz'}"
    for size, shape in (("none", (12, 8)), ("12", (12, 12))):
        settings = [*SMALL, f"data.name={name}", f"data.image_size={size}", "train.batch=10"]
        config = load_config(Supervised, None, [*settings, "model.name=convnet16", "posterior.family=none"])
        assert start(config, tmp_path / size)
        own = config.data.load("test").images
        assert own.shape[2:] == shape
        run = open_run(tmp_path / size)
        assert torch.equal(run.images.images, own)
        expected = run.predictor(own.float() / 255).mean.max(1).values
        found = [float(row["confidence"]) for row in predicted(f"{size}.csv", tmp_path / size, name)[0]]
        torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-5, atol=1e-6)


def test_no_link_that_was_planted_is_followed(runs: Path, predicted: Predicted, tmp_path: Path) -> None:
    """Neither at the name itself, which leads nowhere yet, nor at the one that was once written first."""
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "".join(f"{i},{i * i % 7},{i % 5}\n" for i in range(30)))
    settings = [*SMALL, f"data.name=table:{tmp_path / 'rows.csv'}", "train.batch=8", "model.hidden=4"]
    assert start_table(load_config(Tabular, None, settings), tmp_path / "table")
    for out, model, data in (("d.csv", runs / "bbb", "digits"), ("d.npz", runs / "bbb", "digits"),
                             ("t.csv", tmp_path / "table", "rows.csv")):  # fmt: skip
        for name in (out, f".{out}.partial{Path(out).suffix}"):
            (tmp_path / name).symlink_to(tmp_path / "victim")
        predicted(out, model, data, "--samples", 2)
        assert not (tmp_path / "victim").exists()
        assert not (tmp_path / out).is_symlink()


def test_a_tolerance_takes_fewer_draws_where_they_agree(runs: Path, predicted: Predicted) -> None:
    words = (runs / "bbb", "digits", "--samples")
    middle = np.median([float(row["std"]) for row in predicted("first.csv", *words, 32)[0]]) / 32**0.5
    # A little above: the error that decides is the largest over the classes, the column's that of the class named.
    found = predicted("p.csv", *words, 120, "--tolerance", 1.25 * middle)[0]
    draws, std = (np.array([float(row[name]) for row in found]) for name in ("draws", "std"))
    assert 32 <= draws.min() < draws.max() <= 120
    assert std[draws == draws.max()].mean() > std[draws == draws.min()].mean()
