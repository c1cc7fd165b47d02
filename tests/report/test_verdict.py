"""The answer at the top: right where scores are known, and honest where they say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from byov.report.groups import group
from byov.report.sources import ReportedRun
from byov.report.verdict import verdict
from byov.runs import Header

from .evaluations import evaluated, seeds, with_images


def answer(*runs: ReportedRun) -> str:
    return verdict(group(runs))["answer"]


def test_several_seeds_decide() -> None:
    byol = seeds("byol", False, [0.050, 0.052, 0.048], [0.20, 0.21, 0.19])
    better = seeds("byov", True, [0.020, 0.022, 0.018], [0.10, 0.11, 0.09])
    noisy = seeds("byov", True, [0.020, 0.090, 0.045], [0.10, 0.30, 0.21])
    mixed = seeds("byov", True, [0.051, 0.049, 0.050], [0.30, 0.31, 0.29])
    found = verdict(group([*byol, *better]))
    assert found["question"] == "Is BYOV better calibrated than BYOL here?"
    assert found["answer"] == "Yes, on clean and on shifted images."
    clean, shifted = found["comparisons"][0]["sentences"]
    assert clean.replace("\u00a0", " ") == (
        "On 1,000 clean digits images the ECE is 2.00 ± 0.12 % for BYOV under 30 draws, 5.00 ± 0.12 % for BYOL:"
        " −3.00 points, 95 % interval −3.45 to −2.55."
    )
    assert "10.00" in shifted
    assert "Welch" in found["comparisons"][0]["notes"][0]
    assert answer(*byol, *noisy) == "No difference beyond noise, neither on clean nor on shifted images."
    assert answer(*byol, *mixed) == "Clean images: no difference beyond noise.\nShifted images: no, it is worse."
    assert answer(*noisy, *byol) == answer(*byol, *noisy)  # whatever comes first, BYOL is what BYOV is held against


def test_one_run_each_is_judged_over_images_and_says_so() -> None:
    honest = [(0.8, int(i % 5 > 0)) for i in range(1000)]
    boastful = [(0.95, int(i % 5 > 0)) for i in range(1000)]
    byol = with_images(evaluated("byol", False, 0.0, 0.0), honest)
    byov = with_images(evaluated("byov", True, 0.15, 0.15), boastful)
    found = verdict(group([byol, byov]))
    assert found["answer"] == "No, it is worse in these runs, on clean and on shifted images."
    assert "resampling the test images" in found["comparisons"][0]["notes"][0]
    gap = found["comparisons"][0]["rows"][0]["gap"]
    assert gap["over"] == "images"
    assert gap["value"] == pytest.approx(0.15)
    assert 0.1 < gap["low"] < gap["value"] < gap["high"] < 0.2


def test_without_seeds_or_images_nobody_can_say() -> None:
    found = verdict(group([evaluated("byol", False, 0.05, 0.2), evaluated("byov", True, 0.01, 0.1)]))
    assert found["answer"] == "One run each, so nobody can say."
    assert found["comparisons"][0]["rows"][0]["gap"]["low"] is None


def test_what_was_measured_otherwise_is_not_compared() -> None:
    other = evaluated("byov", True, 0.01, 0.1, data={"digest": "def"})
    assert answer(evaluated("byol", False, 0.05, 0.2), other) == (
        "They cannot be compared: they were measured with different values of the images."
    )


def test_few_mistakes_are_a_warning() -> None:
    def pair(confidence: float) -> list[ReportedRun]:
        """No mistake in a thousand, by both; BYOL is quite sure, BYOV as sure as given: resampling varies nothing."""
        byol = with_images(evaluated("byol", False, 0.0, 0.2, top1=1.0), [(1.0, 1)] * 1000)
        return [byol, with_images(evaluated("byov", True, 1 - confidence, 0.2, top1=1.0), [(confidence, 1)] * 1000)]

    assert answer(*pair(0.999)).startswith("Clean images: too few mistakes to tell.")
    assert answer(*pair(0.9)).startswith("Clean images: no, it is worse in these runs.")
    runs = [evaluated("byol", False, 0.01, 0.2, top1=0.998), evaluated("byov", True, 0.01, 0.2, top1=0.998)]
    assert any("Only 2 clean images are misread" in note for note in verdict(group(runs))["comparisons"][0]["notes"])


def test_one_model_alone() -> None:
    found = verdict(group(seeds("byov", True, [0.02, 0.03], [0.1, 0.2])))
    assert found["question"] == "Do its draws make BYOV better calibrated here?"
    assert found["answer"] == "No difference beyond noise, neither on clean nor on shifted images."
    plain = verdict(group([evaluated("byol", False, 0.02, 0.1)]))
    assert plain["question"] == "How well calibrated is BYOL here?"
    assert "2.00\u00a0% on clean images" in plain["answer"]
    assert verdict(group([ReportedRun("nothing")]))["comparisons"] == []


def test_seeds_are_one_group_and_settings_are_not() -> None:
    def run(name: str, seed: int, beta: float) -> ReportedRun:
        config = {"posterior": {"family": "gaussian", "beta_end": beta}, "train": {"seed": seed, "minutes": seed}}
        return ReportedRun(name, Header(Path(name), {"kind": "pretrain", "config": config}, 1, 1))

    groups = group([run("a", 0, 0.1), run("b", 1, 0.1), run("c", 0, 1.0)])
    assert [[member.name for member in each.runs] for each in groups] == [["a", "b"], ["c"]]
    assert [each.label for each in groups] == ["BYOV, beta_end 0.1", "BYOV, beta_end 1.0"]
