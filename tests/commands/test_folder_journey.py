"""From a folder of pictures to a probe: pretrain without labels, then read on labelled folders, as a user would."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from byov.data import datasets
from byov.data.labelled import in_memory, labelled
from byov.evaluation.probing import probe_run


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dark and bright pictures, in classes and splits; the same without labels."""
    root, chance = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    (root / "flat").mkdir()
    for split, count in (("train", 60), ("test", 20)):
        for name, level in (("bright", 180), ("dark", 40)):
            (root / "classes" / split / name).mkdir(parents=True)
            for i in range(count):
                array = np.clip(chance.normal(level, 30, (20, 24, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(array).save(root / "classes" / split / name / f"{i}.png")
                if split == "train":
                    Image.fromarray(array).save(root / "flat" / f"{name}{i}.png")
    return root


def pretrained(call: Any, run: Path, folder: Path, *settings: str) -> str:
    """Pretrain on a folder; return what was said on stderr."""
    small = ("data.image_size=16", "model.encoder=convnet32", "model.hidden=16", "model.outputs=8")
    quick = ("train.epochs=1", "train.warmup=0", "train.accelerator=cpu", "train.workers=0")
    every = (f"data.name=folder:{folder}", *small, *quick, *settings)
    status, _, err = call("pretrain", "--run", run, *(word for setting in every for word in ("--set", setting)))
    assert status == 0, err
    return " ".join(err.split())


def test_a_run_on_a_folder_is_probed_on_a_labelled_one(call: Any, pictures: Path, tmp_path: Path) -> None:
    shutil.copytree(pictures / "flat", tmp_path / "flat")
    (tmp_path / "flat" / "broken.png").write_bytes(b"no picture")
    said = pretrained(call, tmp_path / "run", tmp_path / "flat", "train.batch=121")
    assert "1 of the 121 images of folder:flat cannot be read and were left out:" in said
    assert "broken.png (cannot identify image file)." in said

    words = ["probe", tmp_path / "run", "--samples", 2, "--fit-samples", 1, "--device", "cpu"]
    words += ["--out", tmp_path / "p.json"]
    status, _, err = call(*words)
    assert (status, "has no labels" in err) == (2, True)  # its own images have none
    # One broken file of 41 is more than the one per cent that may be missing.
    shutil.copytree(pictures / "classes", tmp_path / "spoiled")
    (tmp_path / "spoiled" / "test" / "dark" / "broken.png").write_bytes(b"no picture")
    status, _, err = call(*words, "--data", f"folder:{tmp_path / 'spoiled'}")
    assert (status, "cannot be read, over 1%:" in err) == (2, True)
    assert call(*words, "--data", f"folder:{pictures / 'classes'}")[0] == 0
    saved = json.loads((tmp_path / "p.json").read_text())
    assert [saved["protocol"][split]["images"] for split in ("train", "test")] == [120, 40]
    assert saved["scores"]["linear/top1"] > 0.9  # brightness survives any encoder
    assert saved["scores"]["linear_draws/top1"] > 0.9


def test_a_labelled_folder_is_one_set_for_probing_and_pruning(call: Any, pictures: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "sweep.json"
    pretrained(call, run, pictures / "classes", "data.holdout=0.25", "train.batch=30")
    probed = probe_run(run, "holdout", samples=1, fit_samples=1, device="cpu")
    assert (probed.protocol["train"]["images"], probed.protocol["test"]["images"]) == (90, 30)
    sweep = ("--sweep", "--sparsities", "0,0.5", "--split", "holdout", "--device", "cpu")
    assert call("prune", run, *sweep, "--out", out)[0] == 0
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
