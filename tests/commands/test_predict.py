"""`byov predict`: its numbers, the files it writes, the names it gives, and what it refuses."""

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


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits in a folder without labels, and among them two files that are no images, one with a name of odd bytes."""
    folder = tmp_path_factory.mktemp("pictures")
    for i, image in enumerate(load("digits", "test").images[:120]):
        Image.fromarray(image[0].numpy()).save(folder / f"[{i:03}] a.png")
    (folder / os.fsdecode(b"[001] \xe9.png")).write_text("no image")
    (folder / "broken.png").write_text("no image")
    return folder


Call = Callable[..., tuple[int, str, str]]
SMALL = ["train.epochs=1", "train.warmup=0", "train.accelerator=cpu", "train.devices=1"]


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("strategy", ["auto", "loop", "vmap"])
def test_the_numbers_are_those_of_byov_predict(runs: Path, call: Call, tmp_path: Path, strategy: Any) -> None:
    status, said, _ = call(
        "predict", runs / "bbb", "digits", "--samples", 12, "--strategy", strategy, "--seed", 3, "--device", "cpu"
    )
    assert status == 0
    found = rows(tmp_path / "predictions.csv")
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


def test_npz_has_every_probability_and_the_protocol(runs: Path, call: Call, tmp_path: Path) -> None:
    out = tmp_path / "p.npz"
    assert call("predict", runs / "bbb", "digits", "--samples", 5, "--out", out, "--batch-size", 100)[0] == 0
    assert call("predict", runs / "bbb", "digits", "--samples", 5, "--out", tmp_path / "whole.npz")[0] == 0
    with np.load(out) as found, np.load(tmp_path / "whole.npz") as whole:
        assert found["probabilities"].shape == found["probabilities_std"].shape == (450, 10)
        np.testing.assert_allclose(found["probabilities"].sum(1), 1, atol=1e-5)
        np.testing.assert_allclose(found["probabilities"], whole["probabilities"], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found["confidence"], found["probabilities"].max(1))
        np.testing.assert_allclose(found["entropy"], found["expected_entropy"] + found["mutual_information"], atol=1e-5)
        protocol = json.loads(str(found["protocol"]))
        assert protocol["samples"] == 5
        assert protocol["model"]["posterior"] is True
        assert found["class_names"].tolist() == [str(i) for i in range(10)]
        np.testing.assert_array_equal(found["label"], load("digits", "test").labels)


def test_a_probe_predicts_for_a_pretraining_run(runs: Path, call: Call, tmp_path: Path) -> None:
    asked = ("predict", runs / "byov", "digits", "--samples", 3, "--fit-samples", 1)
    assert call(*asked, "--out", tmp_path / "p.npz")[0] == 0
    module, _ = restore_pretrained(runs / "byov")
    train, test = load("digits", "train"), load("digits", "test")
    options: Any = {"mean": module.views.mean, "std": module.views.std}
    settings = ProbeSettings(k=200, draws_fit=1, draws_read=3)
    probe = Probe.fit(module, train.images, train.labels, 10, settings, **options)
    with np.load(tmp_path / "p.npz") as found:
        np.testing.assert_allclose(found["probabilities"], probe.predict(test.images, 3).mean, rtol=1e-4, atol=1e-6)
        assert set(found["draws"].tolist()) == {3}
    for words, says in ((("--tolerance", 0.1), "leave out --tolerance"), (("--strategy", "vmap"), "loop, not vmap")):
        status, _, err = call("predict", runs / "byov", "digits", *words)
        assert (status, says in err) == (2, True)
    warm = tmp_path / "warm.npz"
    assert call(*asked, "--temper", "--out", warm)[0] == 0
    with np.load(tmp_path / "p.npz") as plain, np.load(warm) as tempered:
        np.testing.assert_array_equal(plain["predicted"], tempered["predicted"])
        assert not np.allclose(plain["confidence"], tempered["confidence"], atol=1e-4)
        parts = tempered["expected_entropy"] + tempered["mutual_information"]
        np.testing.assert_allclose(tempered["entropy"], parts, atol=1e-5)
    assert call("predict", runs / "bbb", "digits", "--temper", "--out", tmp_path / "none.npz")[0] == 2


def test_it_shows_that_a_probe_is_fitted_before_a_picture_is_predicted(
    runs: Path, call: Call, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, int, int]] = []
    monkeypatch.setattr(
        "byov.commands.console.progress",
        lambda: nullcontext(lambda *now: said.append(now) if now not in said else None),
    )
    words = (next(pictures.glob("*020*")), "--samples", 2, "--fit-samples", 1)
    status, out, _ = call("predict", runs / "byov", *words)
    assert (status, "\n1 input, 2 draws each" in out) == (0, True)
    assert said == [("fitting the probe", 0, 1), ("predicting", 0, 1), ("predicting", 1, 1)]
    said.clear()
    for extra, sentence in (((), "predictions.csv exists"), (("--force",), "There is no picture at none.png")):
        status, _, err = call("predict", runs / "byov", "none.png", *extra)
        assert (status, sentence in err, said) == (2, True, [])


def test_a_folder_of_images_gives_file_names(runs: Path, call: Call, pictures: Path, tmp_path: Path) -> None:
    """As predicted from the arrays, but for what has no label; what is no image has an empty row at its place."""
    assert call("predict", runs / "plain", "digits", "--out", "arrays.csv")[0] == 0
    for i, name in enumerate((str(pictures), f"folder:{pictures}")):
        status, said, err = call("predict", runs / "plain", name, "--out", f"{i}.csv")
        assert (status, "Traceback" in err) == (0, False)
        found, arrays = rows(tmp_path / f"{i}.csv"), rows(tmp_path / "arrays.csv")
        names = [f"[{i:03}] a.png" for i in range(120)]
        assert [row["input"] for row in found] == [*names[:2], "[001] \\xe9.png", *names[2:], "broken.png"]
        for row in (found.pop(), found.pop(2)):
            assert {value for key, value in row.items() if key != "input"} == {""}
            assert f"{row['input']} cannot be read: cannot identify image file\n" in err
        assert "label" not in found[0]
        assert "2 could not be read" in said
        assert "top-1" not in said
        for row, other in zip(found, arrays, strict=False):
            assert float(row["confidence"]) == pytest.approx(float(other["confidence"]), rel=1e-4)
            assert (row["predicted"], row["draws"]) == (other["predicted"], "1")
    assert call("predict", runs / "plain", pictures, "--out", "p.npz")[0] == 0
    with np.load(tmp_path / "p.npz") as arrays:
        assert (len(arrays["input"]), arrays["unreadable"].tolist()) == (120, ["[001] \\xe9.png", "broken.png"])


def test_pictures_of_sixteen_bits_are_predicted_as_those_of_eight(runs: Path, call: Call, tmp_path: Path) -> None:
    for name, scale in (("eight", 1), ("sixteen", 257)):
        (tmp_path / name).mkdir()
        for i, image in enumerate(load("digits", "test").images[:10]):
            Image.fromarray(image[0].numpy().astype(np.uint8 if scale == 1 else np.uint16) * scale).save(
                tmp_path / name / f"{i}.png"
            )
        assert call("predict", runs / "plain", name, "--out", f"{name}.csv")[0] == 0
    assert (tmp_path / "eight.csv").read_bytes() == (tmp_path / "sixteen.csv").read_bytes()


def test_class_folders_have_labels_and_names_with_their_folder(call: Call, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tiny_net.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 2))\n"
        "def wrong():\n    return nn.Conv2d(3, 2, 3)\n"
        "def nan():\n    net = make()\n    net[1].weight.data.fill_(float('nan'))\n    return net\n"
    )
    for label in ("cat", "dog"):
        (tmp_path / "pets" / "val" / label).mkdir(parents=True)
        for i in range(2):
            Image.new("RGB", (5, 6), (100 * i, 50, 200)).save(tmp_path / "pets" / "val" / label / f"{i}.jpg")
    words = ("python:tiny_net:make", "pets", "--image-size", 4)
    assert call("predict", *words)[0] == 0
    found = rows(tmp_path / "predictions.csv")
    assert [row["input"] for row in found] == ["val/cat/0.jpg", "val/cat/1.jpg", "val/dog/0.jpg", "val/dog/1.jpg"]
    assert [row["label"] for row in found] == ["cat", "cat", "dog", "dog"]
    assert all(row["predicted"] in ("cat", "dog") for row in found)
    before = (tmp_path / "predictions.csv").read_bytes()
    for other, says in (
        (words, "predictions.csv exists"),
        (("python:tiny_net:make", "pets", "--image-size", 5, "--force"), "cannot take images of 3×5×5"),
        (("python:tiny_net:wrong", "pets", "--image-size", 4, "--force"), "logits (N, C)"),
        (("python:tiny_net:nan", "pets", "--image-size", 4, "--force"), "not finite"),
        (("python:tiny_net:make", "pets", "--split", "train", "--force"), "not 'train'"),
    ):
        status, said, err = call("predict", *other)
        assert (status, said) == (2, "")
        assert says in err
        assert "Traceback" not in err
        assert (tmp_path / "predictions.csv").read_bytes() == before


def test_images_that_are_not_square_are_read_as_they_were_trained_on(call: Call, tmp_path: Path) -> None:
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
        assert call("predict", tmp_path / size, name, "--out", f"{size}.csv")[0] == 0
        expected = run.predictor(own.float() / 255).mean.max(1).values
        found = [float(row["confidence"]) for row in rows(tmp_path / f"{size}.csv")]
        torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-5, atol=1e-6)


def test_no_link_that_was_planted_is_followed(runs: Path, call: Call, tmp_path: Path) -> None:
    """Neither at the name itself, which leads nowhere yet, nor at the one that was once written first."""
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "".join(f"{i},{i * i % 7},{i % 5}\n" for i in range(30)))
    settings = [*SMALL, f"data.name=table:{tmp_path / 'rows.csv'}", "train.batch=8", "model.hidden=4"]
    assert start_table(load_config(Tabular, None, settings), tmp_path / "table")
    victim = tmp_path / "victim"
    for out, model, data in (("d.csv", runs / "bbb", "digits"), ("d.npz", runs / "bbb", "digits"),
                             ("t.csv", tmp_path / "table", "rows.csv")):  # fmt: skip
        for name in (out, f".{out}.partial{Path(out).suffix}"):
            (tmp_path / name).symlink_to(victim)
        assert call("predict", model, data, "--samples", 2, "--out", out)[0] == 0
        assert not victim.exists()
        assert not (tmp_path / out).is_symlink()


def test_a_tolerance_takes_fewer_draws_where_they_agree(runs: Path, call: Call, tmp_path: Path) -> None:
    assert call("predict", runs / "bbb", "digits", "--samples", 32, "--out", "first.csv")[0] == 0
    middle = np.median([float(row["std"]) for row in rows(tmp_path / "first.csv")]) / 32**0.5
    # A little above: the error that decides is the largest over the classes, the column's that of the class named.
    assert call("predict", runs / "bbb", "digits", "--samples", 120, "--tolerance", 1.25 * middle)[0] == 0
    draws = np.array([int(row["draws"]) for row in rows(tmp_path / "predictions.csv")])
    std = np.array([float(row["std"]) for row in rows(tmp_path / "predictions.csv")])
    assert draws.min() >= 32
    assert draws.min() < draws.max() <= 120
    assert std[draws == draws.max()].mean() > std[draws == draws.min()].mean()


def test_bad_input_is_told_in_a_sentence_and_nothing_is_written(runs: Path, call: Call, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.npz").write_text("no arrays")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_text("no image")
    before = sorted(path.name for path in tmp_path.iterdir())
    bbb = runs / "bbb"
    for words, says in (
        ((bbb, "digits", "--out", "p.txt"), "written as .csv or .npz, not as .txt"),
        ((bbb, "digits", "--out", "p"), "a file without a suffix"),
        ((bbb, "digits", "--samples", 0), "samples is at least 1"),
        ((bbb, "digits", "--tolerance", -1), "A tolerance is above 0"),
        ((bbb, "digits", "--strategy", "luck"), "'luck'"),
        ((bbb, "digits", "--batch-size", 0), "batch_size is at least 1"),
        ((bbb, "digits", "--device", "tpu9"), "no device"),
        ((bbb, "digits", "--image-size", 9), "8 pixels"),
        ((bbb, "digits", "--split", "moon"), "splits train, test"),
        ((bbb, "digit"), "did you mean digits"),
        ((bbb, "empty"), "no images"),
        ((bbb, "broken"), "None of the 1 images of folder:broken can be read; the first is a.png: cannot identify"),
        ((bbb, "folder:nowhere"), "is not a folder"),
        ((bbb, "text.npz"), "text.npz"),
        ((bbb, "nowhere.npz"), "nowhere.npz"),
        ((tmp_path / "none", "digits"), "There is no run"),
        (("python:os:getcwd", "digits"), "not a torch.nn.Module"),
        ((bbb,), "Missing argument"),
    ):
        status, out, err = call("predict", *words)
        assert (status, out) == (2, ""), words
        assert says in err, (words, err)
        assert "Traceback" not in err
        assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_picture_files_are_predicted_as_they_are_in_their_folder(
    runs: Path, call: Call, tmp_path: Path, pictures: Path
) -> None:
    files = sorted(pictures.glob("*02?] a.png"))[:3]
    for out, *data in (("one.csv", files[0]), ("three.csv", *files), ("folder.csv", pictures)):
        assert call("predict", runs / "bbb", *data, "--samples", 3, "--out", out)[0] == 0
    by_name = {Path(row.pop("input")).name: row for row in rows(tmp_path / "folder.csv")}
    three = rows(tmp_path / "three.csv")
    assert [row["input"] for row in three] == list(map(str, files))
    for row in [*rows(tmp_path / "one.csv"), *three]:
        assert row["predicted"] == by_name[Path(row["input"]).name]["predicted"]
        assert float(row["entropy"]) == pytest.approx(float(by_name[Path(row["input"]).name]["entropy"]), rel=1e-4)
    for bad, sentence in (
        ([files[0], "digits"], "digits is no picture"),
        (["none.jpg"], "There is no picture at none.jpg"),
        ([files[0], "--split", "test"], "no splits"),
    ):
        status, _, said = call("predict", runs / "bbb", *bad, "--force")
        assert (status, sentence in said) == (2, True)
