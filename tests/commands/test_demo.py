"""The demo: both runs, both tables, the picture; nothing lost, and nothing left behind."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from saved_runs import contents

from byov import demo as module
from byov.demo import demo, recipe
from byov.report.collect import FEW
from byov.report.content import ALL
from byov.ssl.pretrain import restore


def test_the_demo_keeps_what_it_shows_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    monkeypatch.setattr(module, "DRAWS", 2)  # 30 to read under, and 8 to fit under, take most of its time
    monkeypatch.setattr(module, "FIT_DRAWS", 1)
    monkeypatch.setenv("COLUMNS", "80")
    out = tmp_path / "a" / "demo [1]"
    shown = call("demo", "--out", out, "--epochs", 1)[1]
    for words in ("BYOL", "BYOV, draws", "linear, draws", "kNN, μ", "AUROC", "BYOV, snr", f"{out}/report.html"):
        assert words in shown, words
    assert "…" not in shown.replace("without their labels …", "")  # the tables fit 80 columns
    results = json.loads((out / "results.json").read_text())
    assert set(results) == {"BYOL", "BYOV", "shift", "pruning"}
    assert set(results["pruning"]) == {"BYOL, magnitude", "BYOV, snr", "BYOV, magnitude"}
    for curve in results["pruning"].values():
        assert f"{100 * curve['top1'][-1]:.1f}" in shown
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Is BYOV better calibrated than BYOL here?" in page
    assert str(tmp_path) not in page
    assert set(results["shift"]) == {"BYOL", "BYOV, μ", "BYOV, draws"}  # BYOL has no posterior to draw from
    tree = json.loads(re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)[0])
    assert results["shift"] == {told["label"]: tree["ood"]["values"][told["id"]] for told in tree["series"]}
    for row in results["shift"].values():
        assert {"clean", *FEW, ALL} <= set(row["ece"])
        assert f"{100 * row['ece'][ALL]['mean']:.1f}" in shown
        of_level = [row["ece"][shift]["3"] for shift in FEW]
        assert f"{row['auroc_entropy'][ALL]['mean']:.3f}" in shown
        assert row["ece"][ALL]["3"] == pytest.approx(sum(of_level) / len(FEW))
    for name in ("BYOL", "BYOV"):
        _, settings = restore(out / name.lower())
        assert settings == recipe(name == "BYOV", 1)
        scores = results[name]["scores"]
        assert ("linear_draws/ece" in scores) == (name == "BYOV")
        assert scores["linear/top1"] > 0.9  # a linear reading of random convolutions is there already
        assert f"{100 * scores['linear/top1']:.2f}" in shown
        assert results[name]["protocol"]["test"]["images"] == 450
        assert results[name]["protocol"]["settings"]["k"] == 20
    with Image.open(out / "reliability.png") as picture:
        assert picture.size == (1350, 675)

    before = contents(out)
    refusal = f"byov: {out} already holds a demo (byol): choose another --out.\n"
    assert call("demo", "--out", out, "--epochs", 1) == (2, "", refusal)
    assert contents(out) == before


def test_without_a_folder_only_the_results_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the folder of temporary files in sight; stopped halfway too."""
    scratch, here = tmp_path / "scratch", tmp_path / "here"
    scratch.mkdir()
    here.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.chdir(here)
    monkeypatch.setattr(module, "DRAWS", 2)
    seen: list[Path] = []

    def stops(run: Path, **options: object) -> None:
        seen.append(run)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "probe_run", stops)
        with pytest.raises(KeyboardInterrupt):
            demo(epochs=1)
    assert seen[0].is_relative_to(scratch)
    assert list(scratch.iterdir()) == []
    assert not [path for path in here.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_twice_without_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any) -> None:
    """The results are the demo's own, so a second one renews them; the same seed, the same numbers."""
    monkeypatch.chdir(tmp_path)
    found = []
    for _ in range(2):
        assert call("demo", "--epochs", 2)[0] == 0
        names = ("results.json", "reliability.png", "report.html")
        assert {path.name for path in (tmp_path / "runs" / "demo").iterdir()} == set(names)
        results = json.loads((tmp_path / "runs" / "demo" / "results.json").read_text())
        found.append((results["shift"], results["BYOL"]["scores"], results["BYOV"]["scores"]))
    assert found[0] == found[1]
