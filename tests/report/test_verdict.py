"""The answer at the top: right where scores are known, and honest where they say nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byov.evaluation.rows import Row
from byov.report.content import cost
from byov.report.groups import group
from byov.report.sources import ReportedRun
from byov.report.verdict import bars, rounded_up, verdict
from byov.runs import Header


def evaluated(
    name: str, posterior: bool, clean: float, shifted: float, top1: float = 0.9, **changed: Any
) -> ReportedRun:
    """A model known by a file of results only: its ECE on clean images, and under each of two shifts."""

    def scores(ece: float) -> dict[str, float | None]:
        return {"top1": top1, "ece": ece, "nll": 0.5, "brier": 0.2, "reliability": 0.01, "auroc_entropy": 0.8}

    def row(shift: str, severity: int, ece: float) -> Row:
        return Row(shift, severity, scores(ece), scores(ece) if posterior else None)

    protocol = {
        "seed": 0,
        "samples": 30 if posterior else None,
        "bins": 15,
        "shifts": ["blur", "noise"],
        "severities": [3],
        "data": {"name": "digits", "split": "test", "digest": "abc", "images": 1000, **changed.pop("data", {})},
        "model": {"name": name, "kind": "pretrain", "digest": name, "posterior": posterior},
        **changed,
    }
    rows = [row("clean", 0, clean), row("blur", 3, shifted - 0.01), row("noise", 3, shifted + 0.01)]
    return ReportedRun(name, evaluation={"protocol": protocol, "rows": rows})


def seeds(method: str, posterior: bool, clean: Sequence[float], shifted: Sequence[float]) -> list[ReportedRun]:
    """Runs of one method, named as the files of `results/` are."""
    pairs = enumerate(zip(clean, shifted, strict=True))
    return [evaluated(f"runs/{method}_{i}", posterior, *each) for i, each in pairs]


def with_images(run: ReportedRun, clean: Sequence[tuple[float, int]]) -> ReportedRun:
    """The same with what was predicted for each image, (confidence, hit), the same under every shift."""
    confidence, correct = ([pair[i] for pair in clean] for i in (0, 1))
    part = {"confidence": confidence, "correct": correct}
    readings = ("at_mean", "under_draws") if run.posterior else ("at_mean",)
    keys = ("clean/0", "blur/3", "noise/3")
    run.parts |= {"images": {key: dict.fromkeys(readings, part) for key in keys}, "paired": True}
    return run


def answer(*runs: ReportedRun) -> str:
    return verdict(group(runs))["answer"]


def told(found: dict[str, Any]) -> str:
    return " ".join(found["comparisons"][0]["sentences"])


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
        " −3.00 points; 95 % interval over seeds −3.45 to −2.55."
    )
    assert "10.00" in shifted
    assert "Welch" in found["comparisons"][0]["notes"][0]
    assert answer(*byol, *noisy) == "No difference beyond noise, neither on clean nor on shifted images."
    assert answer(*byol, *mixed) == "Clean images: no difference beyond noise.\nShifted images: no, it is worse."
    assert answer(*noisy, *byol) == answer(*byol, *noisy)  # whatever comes first, BYOL is what BYOV is held against


def test_draws_are_held_against_the_mean_run_by_run() -> None:
    """Seeds differ by far more than the two readings of each: pairs tell them apart."""
    runs = seeds("byov", True, [0.03, 0.06, 0.09], [0.10, 0.20, 0.30])
    for i, run in enumerate(runs):
        rows = run.evaluation["rows"]
        less = [{**row.under_draws, "ece": row.at_mean["ece"] - 0.010 - 0.001 * i} for row in rows]
        run.evaluation["rows"] = [replace(row, under_draws=scores) for row, scores in zip(rows, less, strict=True)]
    found = verdict(group(runs))
    gap = found["comparisons"][0]["rows"][0]["gap"]
    assert (gap["value"], gap["over"]) == (pytest.approx(-0.011), "seeds")
    assert gap["high"] == pytest.approx(-0.011 + 4.302653 * 0.001 / 3**0.5)  # Student's t of two degrees
    assert found["answer"].startswith("Yes, on clean and on shifted images")


def test_one_run_each_is_told_beyond_twice_the_reach_over_images() -> None:
    honest = [(0.8, int(i % 5 > 0)) for i in range(1000)]

    def against(confidence: float) -> dict[str, Any]:
        byol = with_images(evaluated("byol", False, 0.0, 0.0), honest)
        gap = confidence - 0.8
        boastful = [(confidence, int(i % 5 > 0)) for i in range(1000)]
        return verdict(group([byol, with_images(evaluated("byov", True, gap, gap), boastful)]))

    found = against(0.95)
    assert found["answer"] == "No, it is worse in these runs, on clean and on shifted images."
    assert "the effect of training again is unknown" in found["comparisons"][0]["notes"][0]
    row = found["comparisons"][0]["rows"][0]
    gap = row["gap"]
    assert gap["over"] == "images"
    assert gap["value"] == pytest.approx(0.15)
    assert row["least"] == pytest.approx(2 * (gap["high"] - gap["value"]))
    assert not any("interval" in sentence for sentence in found["comparisons"][0]["sentences"])
    assert f"differences below about {rounded_up(100 * row['least'])} points are undecided" in told(found)
    # The images alone would tell this one: another training might not.
    close = against(0.8 + 1.5 * (gap["high"] - gap["value"]))
    assert close["comparisons"][0]["rows"][0]["gap"]["low"] > 0
    assert close["answer"] == "Undecided with one run each, on clean and on shifted images."


@pytest.mark.parametrize(
    ("points", "written"), [(0, "0"), (0.0123, "0.013"), (0.2, "0.20"), (4.01, "4.1"), (37.0, "37"), (37.2, "38")]
)
def test_what_is_not_told_is_never_rounded_down(points: float, written: str) -> None:
    assert rounded_up(points) == written


def test_without_seeds_or_images_nobody_can_say() -> None:
    found = verdict(group([evaluated("byol", False, 0.05, 0.2), evaluated("byov", True, 0.01, 0.1)]))
    assert found["answer"] == "Unknown with one run each."
    assert found["comparisons"][0]["rows"][0]["gap"]["low"] is None


def test_what_was_measured_otherwise_is_not_compared() -> None:
    other = evaluated("byov", True, 0.01, 0.1, data={"digest": "def"})
    found = verdict(group([evaluated("byol", False, 0.05, 0.2), other]))
    assert found["answer"] == "They cannot be compared: byol and byov were measured with different images."
    assert told(found) == "Evaluate both again with the same --data, --split and --limit."
    assert other.evaluation is not None
    other.evaluation["protocol"] |= {"data": evaluated("byol", False, 0, 0).protocol["data"], "shifts": ["blur"]}
    other.evaluation["file"] = "other.json"
    found = verdict(group([evaluated("byol", False, 0.05, 0.2), other]))
    assert found["answer"] == "They cannot be compared: byol and other.json were measured with different shifts."
    assert told(found) == (
        "Evaluate both again with the same --shift and --severities, or name only the run folders and add --renew."
    )


def test_the_caption_of_the_bars_is_true_of_every_row() -> None:
    def caption(*runs: ReportedRun) -> str:
        return bars(verdict(group(runs))["comparisons"]).replace("\u00a0", " ")

    byol = with_images(evaluated("byol", False, 0.0, 0.2, top1=0.99), [(0.99, int(i % 100 > 0)) for i in range(1000)])
    byov = with_images(evaluated("byov", True, 0.0, 0.1, top1=0.99), [(0.98, int(i % 100 > 0)) for i in range(1000)])
    undecided = "If a bar crosses 0, the difference is undecided."
    assert caption(byol, byov) == (
        f"{undecided} Bar (clean): a 95 % interval over the test images."
        " Bar (shifted): with one run each, twice the 95 % interval over the test images."
    )
    assert caption(byov) == f"{undecided} Bar: a 95 % interval over the test images."
    several = seeds("byol", False, [0.05, 0.06], [0.2, 0.3]), seeds("byov", True, [0.01, 0.02], [0.1, 0.2])
    assert caption(*several[0], *several[1]) == f"{undecided} Bar: a 95 % interval over seeds."
    assert caption(several[0][0], several[1][0]) == f"{undecided} No bar: the noise is unknown."


def test_few_mistakes_are_a_warning() -> None:
    def pair(confidence: float) -> list[ReportedRun]:
        """No mistake in a thousand, by both; BYOL is quite sure, BYOV as sure as given: resampling varies nothing."""
        byol = with_images(evaluated("byol", False, 0.0, 0.2, top1=1.0), [(1.0, 1)] * 1000)
        return [byol, with_images(evaluated("byov", True, 1 - confidence, 0.2, top1=1.0), [(confidence, 1)] * 1000)]

    assert answer(*pair(0.999)).startswith("Clean images: too few mistakes to tell.")
    assert answer(*pair(0.9)).startswith("Clean images: no, it is worse in these runs.")
    runs = [evaluated("byol", False, 0.01, 0.2, top1=0.998), evaluated("byov", True, 0.01, 0.2, top1=0.998)]
    found = verdict(group(runs))
    assert found["answer"].startswith("Clean images: too few mistakes to tell.")
    assert any("Of 1,000 clean images, 2 and 2 are misclassified" in note for note in found["comparisons"][0]["notes"])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2)])
def test_a_model_is_compared_with_its_own_twin(order: tuple[int, ...]) -> None:
    def run(encoder: str, family: str) -> ReportedRun:
        found = evaluated(f"{encoder}_{family}", family != "none", 0.05, 0.2)
        config = {"model": {"encoder": encoder}, "posterior": {"family": family, "beta_end": 0.1}, "train": {"seed": 1}}
        about = {"kind": "pretrain", "config": config}
        return replace(found, header=Header(Path(found.name), about, 1, 1))

    runs = [run(encoder, family) for encoder in ("vit", "resnet") for family in ("none", "gaussian")]
    found = verdict(group([runs[i] for i in order]))
    pairs = [(each["second"]["label"], each["first"]["label"]) for each in found["comparisons"]]
    assert sorted(pairs) == [(f"BYOV, encoder {e}", f"BYOL, encoder {e}") for e in ("resnet", "vit")]


SHARES = st.floats(0, 0.3)


@st.composite
def reports(draw: st.DrawFn) -> list[ReportedRun]:
    """Models with and without a posterior, of one seed or several, with and without a record of each image."""
    runs: list[ReportedRun] = []
    for i, posterior in enumerate(draw(st.lists(st.booleans(), min_size=1, max_size=3))):
        count, recorded = draw(st.integers(1, 3)), draw(st.booleans())
        top1 = draw(st.sampled_from([0.7, 0.98, 0.998, 1.0]))
        for seed in range(count):
            made = evaluated(f"runs/{'abc'[i]}_{seed}", posterior, draw(SHARES), draw(SHARES), top1)
            sure = draw(st.floats(0.5, 1))
            runs.append(with_images(made, [(sure, int(k >= 50 * (1 - top1))) for k in range(50)]) if recorded else made)
    return runs


@settings(max_examples=60, deadline=None)
@given(reports())
def test_headline_rows_and_sentences_never_disagree(runs: list[ReportedRun]) -> None:
    found = verdict(group(runs))
    if found["comparisons"]:
        assert found["answer"] == found["comparisons"][0]["answer"]
    for each in found["comparisons"]:
        rows = [row for row in each["rows"] if row["score"] == "ece"]
        lines = each["answer"].split("\n")
        for row, sentence in zip(rows, each["sentences"], strict=True):
            where = "Clean" if row["clean"] else "Shifted"
            said = next((line for line in lines if line.startswith(where)), lines[0]).lower()
            assert ("yes" in said) == (row["sign"] == -1)
            assert ("it is worse" in said) == (row["sign"] == 1)
            assert ("too few mistakes" in said) == row["few"]
            assert ("in these runs" in said) == (row["least"] is not None and row["sign"] != 0)
            assert f"{100 * row['gap']['value']:+.2f}".replace("-", "−") in sentence
            assert ("interval" in sentence) == (row["gap"]["low"] is not None and row["least"] is None)
            if row["sign"]:
                beyond = row["gap"]["high"] - row["gap"]["value"] if row["least"] is None else row["least"]
                assert row["sign"] * row["gap"]["value"] > beyond
            if (
                row["interval"] is None
            ):  # what the plot draws, too: a bar that leaves 0 out is a difference that is told
                assert not row["sign"]
            elif not row["few"]:
                low, high = row["interval"]
                assert (low > 0) - (high < 0) == row["sign"]
        assert any("misclassified" in note for note in each["notes"]) == any(row["few"] for row in rows)


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


def test_draws_of_a_last_layer_cost_one_pass() -> None:
    run = evaluated("byov", True, 0.1, 0.2)
    assert [each["passes"] for each in cost(group([run]))] == ["30"]
    run.parts["strategy"] = "head"
    assert [each["passes"] for each in cost(group([run]))] == ["1, and 30 of the head"]
