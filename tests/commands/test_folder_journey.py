"""From a folder of pictures to a probe: pretrain without labels, then read on labelled folders, as a user would."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from byov.cli import main
from byov.data import datasets
from byov.data.labelled import in_memory, labelled
from byov.evaluation.probing import probe_run


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["byov", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dark and bright pictures, in classes and splits; the same without labels; and one file that is no picture."""
    root, chance = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for split, count in (("train", 60), ("test", 20)):
        for name, level in (("bright", 180), ("dark", 40)):
            (root / "classes" / split / name).mkdir(parents=True)
            for i in range(count):
                array = np.clip(chance.normal(level, 30, (20, 24, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(array).save(root / "classes" / split / name / f"{i}.png")
    (root / "flat").mkdir()
    for i, file in enumerate(sorted((root / "classes" / "train").rglob("*.png"))):
        (root / "flat" / f"{i}.png").write_bytes(file.read_bytes())
    (root / "classes" / "test" / "dark" / "broken.png").write_bytes(b"no picture")
    return root


def pretrain(patch: pytest.MonkeyPatch, run: Path, folder: Path, *settings: str) -> Path:
    small = ("data.image_size=16", "model.encoder=convnet32", "model.hidden=16", "model.outputs=8")
    quick = ("train.epochs=1", "train.warmup=0", "train.accelerator=cpu", "train.workers=0")
    every = (f"data.name=folder:{folder}", *small, *quick, *settings)
    assert call(patch, "pretrain", "--run", run, *(word for setting in every for word in ("--set", setting))) == 0
    return run


@pytest.fixture(scope="module")
def run(pictures: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        return pretrain(patch, pictures / "run", pictures / "flat", "train.batch=40")


def test_a_run_on_a_folder_is_probed_on_a_labelled_one(
    pictures: Path, run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["probe", run, "--samples", 2, "--fit-samples", 1, "--device", "cpu", "--out", tmp_path / "p.json"]
    assert call(monkeypatch, *words) == 2  # its own images have no labels
    assert "has no labels" in capsys.readouterr().err
    # One broken file of 41 is more than the one per cent that may be missing.
    data = f"folder:{pictures / 'classes'}"
    assert call(monkeypatch, *words, "--data", data) == 2
    assert "cannot be read, over 1%:" in capsys.readouterr().err
    (pictures / "classes" / "test" / "dark" / "broken.png").unlink()
    assert call(monkeypatch, *words, "--data", data) == 0
    saved = json.loads((tmp_path / "p.json").read_text())
    assert saved["protocol"]["train"]["images"] == 120
    assert saved["protocol"]["test"]["images"] == 40
    assert saved["scores"]["linear/top1"] > 0.9  # brightness survives any encoder
    assert saved["scores"]["linear_draws/top1"] > 0.9


def test_training_says_what_it_left_out(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(pictures / "flat", tmp_path / "flat")
    (tmp_path / "flat" / "broken.png").write_bytes(b"no picture")
    pretrain(monkeypatch, tmp_path / "run", tmp_path / "flat", "train.batch=121")
    said = " ".join(capsys.readouterr().err.split())
    assert "1 of the 121 images of folder:flat cannot be read and were left out:" in said
    assert "broken.png (cannot identify image file)." in said


def test_splits_with_other_classes_are_refused(
    pictures: Path, run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its first class the second split's labels would be off by one, and nobody would know."""
    shutil.copytree(pictures / "classes" / "train", tmp_path / "odd" / "train")
    shutil.copytree(pictures / "classes" / "train" / "dark", tmp_path / "odd" / "test" / "dark")
    words = ("probe", run, "--samples", 1, "--device", "cpu", "--data", f"folder:{tmp_path / 'odd'}")
    assert call(monkeypatch, *words) == 2
    assert "different classes (2 and 1)" in " ".join(capsys.readouterr().err.split())


def test_a_labelled_folder_is_one_set_for_probing_and_pruning(
    pictures: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = pretrain(monkeypatch, tmp_path / "run", pictures / "classes", "data.holdout=0.25", "train.batch=30")
    probed = probe_run(made, "holdout", samples=1, fit_samples=1, device="cpu")
    assert (probed.protocol["train"]["images"], probed.protocol["test"]["images"]) == (90, 30)
    out = tmp_path / "sweep.json"
    sweep = ("--sweep", "--sparsities", "0,0.5", "--split", "holdout", "--device", "cpu")
    assert call(monkeypatch, "prune", made, *sweep, "--out", out) == 0
    assert json.loads(out.read_text())["curves"][0]["top1"][0] == pytest.approx(probed.result.scores["linear"].top1)


def test_a_folder_in_memory_is_what_its_files_hold(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = labelled(f"folder:{pictures / 'classes'}", "train", image_size=20)
    file = sorted((pictures / "classes" / "train" / "bright").glob("*.png"))[0]
    expected = torch.from_numpy(np.asarray(Image.open(file))[:, 2:22].copy()).permute(2, 0, 1)
    assert torch.equal(data.images[0], expected)
    assert data.class_names == ("bright", "dark")
    assert in_memory(data, "train") is data
    monkeypatch.setattr(datasets, "free_memory", lambda: 30)
    with pytest.raises(ValueError, match=r"GiB in memory, where 0 are free: evaluate with --limit"):
        labelled(f"folder:{pictures / 'classes'}", "train", image_size=20)
