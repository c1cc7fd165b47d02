"""The page: whole, closed, safe with any name, and its tables say what its numbers say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byov.evaluation.representation import MEASURES
from byov.evaluation.retrieval import run_measures
from byov.evaluation.rows import evaluate, shifts_for
from byov.evaluation.scores import scores
from byov.metrics.functional import r_auroc, recall_at_1, risk_coverage
from byov.report import collect as collecting
from byov.report import page as pages
from byov.report.content import about
from byov.report.formatting import abbr, cell, signed
from byov.report.page import LIMIT, as_script, render, report
from byov.runs import open_run
from byov.runs.run import Pretrained, Run

from .conftest import READING, REQUEST, Pair
from .reading import SECTIONS, Page

Tree = dict[str, Any]


@pytest.fixture(scope="module")
def run(runs: dict[str, Path]) -> Run:
    """BYOV's, opened as the page's was."""
    return open_run(runs["byov"], READING)


def test_every_section_is_there_and_nothing_is_loaded(pair: Pair, page: Page) -> None:
    html = pair[0].read_text(encoding="utf-8")
    assert list(page.sections) == SECTIONS
    assert len(html.encode()) < LIMIT / 10
    assert all(place.startswith(("#", "data:")) for place in page.loaded), page.loaded
    assert not re.search(r"(?:src|href|url|@import)\s*[=(]?\s*[\"']?(?:https?:)?//", html)
    [policy] = [str(each["content"]) for each in page.with_attribute("http-equiv")]
    assert policy.startswith("default-src 'none';")
    assert page.data == json.loads(json.dumps(pair[1]))
    for section in SECTIONS:
        assert "To add it, run" not in page.sections[section], section
        assert len(page.text(section)) > 40, section


def test_names_are_text_whatever_they_hold(pair: Pair, page: Page, runs: dict[str, Path]) -> None:
    html, name = pair[0].read_text(encoding="utf-8"), str(runs["byov"])
    assert "<b>" in name
    assert "<b>" not in html
    assert "</script><" not in re.sub(r"</script>\s*<(script|/body)", "", html)
    assert name in page.sections["config"]


@given(st.text())
def test_a_script_cannot_be_ended_by_its_numbers(text: str) -> None:
    written = as_script({"a": text, "b": "</script><!--"})
    assert "<" not in written
    assert json.loads(written) == {"a": text, "b": "</script><!--"}


@given(st.text('<>&"ECNL '))
def test_abbreviations_are_marked_and_the_rest_is_text(text: str) -> None:
    found = Page(f"<section id='x'>{abbr(text)}</section>")
    assert found.sections["x"] == text
    assert len(found.with_attribute("data-tip")) <= 2


def test_the_answer_is_told_in_numbers(tree: Tree, page: Page) -> None:
    told = page.text("answer")
    assert told.strip().startswith("digits, test: 80 images")
    for words in (
        "Is BYOV better calibrated than BYOL here?",
        "the ECE is",
        "with one run each, differences below about",
        "If a bar crosses 0, the difference is undecided. Bar",
    ):
        assert words in told
    for row in tree["verdict"]["comparisons"][0]["rows"]:
        assert cell(row["second"]["value"], row["unit"]) in told
        assert signed(row["gap"]["value"], row["unit"], row["second"]["value"]) in told


def test_the_measures_of_the_embedding_are_explained(page: Page) -> None:
    told = page.text("representation")
    for measure in ("spread", "augmented", "variance", "−‖embedding‖"):
        assert measure in told


def test_tables_show_the_numbers_of_the_page(tree: Tree, page: Page) -> None:
    for row in tree["numbers"]["rows"]:
        for name in ("ece/clean", "ece/shifted", "top1/clean"):
            assert f"{100 * row['scores'][name]['value']:.2f}" in page.text("numbers")
    assert {"clean", "rotation", "all shifts"} <= set(tree["ood"]["shifts"])
    for series in tree["ood"]["values"].values():
        found = series["ece"]["rotation"]
        assert f"{100 * found['mean']:.2f}" in page.text("ood")
        assert found["mean"] == pytest.approx((found["3"] + found["5"]) / 2)
    assert len(page.with_attribute("data-sort")) > 20


def test_the_rows_are_those_of_byov_evaluate(run: Run, tree: Tree) -> None:
    """Again from the library's own functions; and the ECE of what was kept of each image is the row's."""
    shifts, _ = shifts_for("augmentations", run.images)
    rows = evaluate(run.predictor, run.images.images, run.labels, {"blur": shifts["blur"]}, (3, 5), 3)
    kept = tree["ood"]["values"]["1/under_draws"]["ece"]
    assert kept["clean"]["mean"] == pytest.approx(rows[0].under_draws["ece"], abs=1e-9)  # type: ignore[index]
    assert kept["blur"]["5"] == pytest.approx(rows[2].under_draws["ece"], abs=1e-9)  # type: ignore[index]
    diagrams = tree["calibration"]
    assert diagrams["clean"]["1/under_draws"]["ece"] == pytest.approx(kept["clean"]["mean"], abs=1e-6)
    assert diagrams["shifted"]["1/under_draws"]["images"] == len(run.images) * 5 * 2


def test_pruning_and_layers_are_of_the_weights(run: Run, tree: Tree) -> None:
    at_mean = scores(run.at_mean, run.labels)
    curves = {(each["label"], curve["by"]): curve for each in tree["pruning"] for curve in each["value"]}
    assert set(curves) == {("BYOL", "magnitude"), ("BYOV", "snr"), ("BYOV", "magnitude")}
    for by in ("snr", "magnitude"):
        curve = curves["BYOV", by]
        assert curve["sparsity"][0] == 0
        assert curve["ece"][0] == pytest.approx(at_mean["ece"], abs=1e-6)
        assert curve["top1"][-1] < curve["top1"][0]
    [layers] = tree["layers"]  # BYOL has none
    assert run.q is not None
    std, snr = run.q.std(), run.q.snr()
    for row in layers["value"]:
        assert row["sigma"][2] == pytest.approx(std[row["name"]].flatten().quantile(0.5).item(), rel=1e-5)
        assert row["snr"][4] == pytest.approx(snr[row["name"]].flatten().quantile(0.95).item(), rel=1e-4)
    assert len(layers["log"]["epochs"]) == len(layers["log"]["layers"][0]["sigma"]) > 1


def test_selective_risk_and_entropy_are_those_of_the_predictions(run: Run, tree: Tree) -> None:
    drawn: Any = run.under_draws
    told, curve = tree["risk"]["clean"]["1/under_draws"], risk_coverage(drawn.mean, run.labels)
    assert told["aurc"] == pytest.approx(curve.risk.mean().item(), abs=1e-6)
    assert told["points"][-1] == [1, pytest.approx(1 - tree["numbers"]["rows"][2]["scores"]["top1/clean"]["value"])]
    shares, width = tree["entropy"]["shares"]["1/under_draws"], tree["entropy"]["width"]
    middle = sum(share * (i + 0.5) * width for i, share in enumerate(shares["clean"]))
    assert middle == pytest.approx(drawn.entropy.mean().item(), abs=width / 2)
    assert [sum(each) for each in shares.values()] == [pytest.approx(1, abs=1e-3)] * 2


def test_it_says_of_what_when_and_at_what_cost(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    point, drawn = tree["cost"]
    assert (point["passes"], drawn["passes"]) == ("1", "3")
    assert drawn["parameters"] == 2 * point["parameters"]  # a mean and a variance of each
    assert tree["about"]["data"] == {"name": "digits", "split": "test", "images": 80}
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    told = Page(render({**tree, "about": {**tree["about"], **about([])}})).text("answer")
    assert "9 September 2001" in told
    assert f"{drawn['parameters']:,}" in told


def test_what_it_knows_without_labels_is_that_of_the_run(run: Run, tree: Tree) -> None:
    assert isinstance(run, Pretrained)
    embeddings, measures = run_measures(run, run.images.images, augmented=False)
    [_, found] = [each["value"] for each in tree["representation"]]  # BYOL's, too
    assert found["images"] == 80
    assert found["r_at_1"][0] == pytest.approx(recall_at_1(embeddings, run.labels).item())
    assert set(found["r_auroc"]) == {MEASURES[name] for name in measures}
    value = r_auroc(measures["negative_norm"], embeddings, run.labels).item()
    assert found["r_auroc"]["−‖embedding‖"][0] == pytest.approx(value)


def test_the_gallery_is_in_order(tree: Tree) -> None:
    for value in (each["value"] for each in tree["gallery"]):
        certain, uncertain = ([e["entropy"] for e in value[key]] for key in ("certain", "uncertain"))
        assert certain == sorted(certain)
        assert uncertain == sorted(uncertain, reverse=True)
        assert certain[-1] <= uncertain[-1]
        mistakes = value["mistakes"]
        assert len(mistakes) == min(value["wrong"], 12)
        assert all(not e["correct"] and e["label"] != e["predicted"] for e in mistakes)
        assert [e["confidence"] for e in mistakes] == sorted((e["confidence"] for e in mistakes), reverse=True)
        assert all(e["image"].startswith("data:image/png;base64,") for e in value["certain"])


def test_a_second_page_measures_nothing(
    runs: dict[str, Path], pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(collecting, "open_run")
    again = tmp_path / "again.html"
    report([runs["byol"], runs["byov"]], again, REQUEST)
    assert again.read_bytes() == pair[0].read_bytes()


def test_what_was_not_measured_says_which_command_measures_it(runs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "bare.html"
    report([runs["byov2"]], out, REQUEST, compute=False, cache=tmp_path / "cache")
    page = Page(out.read_text(encoding="utf-8"))
    for section in set(SECTIONS) - {"answer", "training", "config"}:
        assert re.search(r"To add it, run byov (report|evaluate|pretrain) .*\.", page.text(section)), section
    assert "Nothing has been measured yet" in page.text("answer")
    assert "posterior.family" in page.text("config")
    assert "byov {{ 7*7 }}" in page.text("config").split("Runs")[1]  # a name, not a template
    assert not [each for each in page.with_attribute("data-figure") if each["data-figure"] != "training"]


def test_a_classifier_alone(runs: dict[str, Path], tmp_path: Path) -> None:
    tree = report([runs["train"]], tmp_path / "train.html", REQUEST, cache=tmp_path / "cache")
    assert tree["verdict"]["question"] == "Do its draws make EMP better calibrated here?"
    assert [row["series"] for row in tree["numbers"]["rows"]] == ["0/at_mean", "0/under_draws"]
    assert set(Page((tmp_path / "train.html").read_text()).sections) == set(SECTIONS)


def test_a_page_that_grows_too_large_is_refused(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "LIMIT", 1000)
    with pytest.raises(ValueError, match="over 1,000: name fewer runs"):
        pages.write(tmp_path / "x.html", render(tree))
    assert not list(tmp_path.iterdir())
