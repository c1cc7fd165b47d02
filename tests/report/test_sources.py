"""What may be named: folders and files, each given to the run it speaks of."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from byov.report.collect import file_digest
from byov.report.page import report
from byov.report.sources import evenly_spaced, gather
from byov.runs.header import read_lines

from .conftest import READING, REQUEST
from .reading import Page

ROOT = Path(__file__).parents[2]


def test_files_of_results_alone_make_a_page(tmp_path: Path) -> None:
    """Six files of the repository: two models with three seeds each."""
    files = sorted((ROOT / "results" / "digits").glob("*.json"))
    tree = report(files, tmp_path / "report.html", REQUEST)
    assert [(each["label"], len(each["runs"])) for each in tree["groups"]] == [("BYOL", 3), ("BYOV", 3)]
    eces = [json.loads(file.read_text())["rows"][0]["at_mean"]["ece"] for file in files if "byol" in file.name]
    row = next(row for row in tree["numbers"]["rows"] if row["series"] == "0/at_mean")
    assert row["scores"]["ece/clean"]["value"] == pytest.approx(sum(eces) / 3)
    assert "no difference beyond noise" in tree["verdict"]["answer"].lower()
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "To add it, run" in page.sections["gallery"]


def test_a_file_is_given_to_its_run(runs: dict[str, Path], pair: Any, tmp_path: Path) -> None:
    content = json.loads(next((ROOT / "results" / "digits").glob("byov*.json")).read_text())
    content["protocol"]["model"]["name"] = str(runs["byov"])
    scores = {"linear/ece": 0.25, "linear_draws/ece": 0.125, "linear/nll": float("inf")}
    probe = {"scores": scores, "protocol": {"run": str(runs["byov"])}}
    comparison = {"quantity": "x", "ours": 1.5, "paper": None, "error": 0.1, "verdict": "none"}
    outcome = {"kind": "byov reproduce", "name": "byov/figure9", "title": "A <figure>", "comparisons": [comparison]}
    curve = {"model": runs["byov"].name, "by": "snr", "sparsity": [0, 0.5], "top1": [0.9, 0.8], "ece": [0.1, 0.2]}
    sweep = {"kind": "byov prune sweep", "protocol": {}, "curves": [curve]}
    explored = {"what": "alignment", "protocol": {}, "result": {"spearman": 0.375, "std": [[1, 2]], "deep": {"n": 3}}}
    written = {"mine": content, "probe": probe, "outcome": outcome, "sweep": sweep, "alignment": explored}
    for name, tree in written.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(tree))
    Image.new("RGB", (2000, 10), "white").save(tmp_path / "alignment.png")
    sources = gather([runs["byov"], *sorted(tmp_path.glob("*.json"))])
    assert len(sources.runs) == 1
    assert sources.runs[0].evaluation is not None
    assert sources.runs[0].probe == probe
    out = tmp_path / "report.html"
    tree = report([runs["byov"], *sorted(tmp_path.glob("*.json"))], out, REQUEST)
    assert any("of other weights" in note for note in tree["notes"])  # the file is of a run that is not this one
    assert tree["protocol"]["shared"]["data.images"] == READING.limit
    assert tree["pruning"][-1]["group"] == 0
    page = Page(out.read_text(encoding="utf-8"))
    for section, words in (
        ("answer", "of other weights"),
        ("reproduced", "A <figure>"),
        ("numbers", "0.1250"),
        ("explored", "spearman 0.375"),
        ("explored", "deep.n 3"),
    ):
        assert words in page.text(section)
    assert [each for each in page.with_attribute("src") if str(each["src"]).startswith("data:image/webp")]


def test_the_command_says_the_answer_and_the_size(call: Any, runs: dict[str, Path], tmp_path: Path) -> None:
    files = [ROOT / "results" / "digits" / f"{name}_seed0.json" for name in ("byol", "byov")]
    status, printed, error = call("report", *files, "--out", tmp_path / "a" / "r.html", "--device", "cpu")
    assert (status, error) == (0, "")
    assert printed.startswith("Is BYOV better calibrated than BYOL here?\nUnknown with one run each.\n")
    assert f"{(tmp_path / 'a' / 'r.html').stat().st_size / 1e3:,.0f} kB" in printed


def test_small_things(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(
        b'{"a": 1}\n3\n{"a": 1e400, "b": NaN, "c": -1' + b"0" * 400 + b"}\n\xff\n" + b"[" * 100_000 + b'\n{"a": '
    )
    assert read_lines(tmp_path / "log") == [{"a": 1}, {"a": None, "b": None, "c": None}]
    assert read_lines(tmp_path / "none") == []
    assert evenly_spaced(list(range(10)), 4) == [0, 3, 6, 9]
    assert evenly_spaced([1, 2], 4) == [1, 2]
    assert file_digest(tmp_path / "log") == hashlib.sha256((tmp_path / "log").read_bytes()).hexdigest()[:12]
