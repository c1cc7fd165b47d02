"""The answer at the top of the page: is one model better calibrated than another, and is that more than noise?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from byov.report.groups import Group, condition, row_score
from byov.report.intervals import Hits, Interval, estimate, mean_error, over_images, over_pairs, over_seeds, wilson
from byov.train.config import flatten

SAME = ("data.digest", "data.images", "bins", "shifts", "severities")
"""What two evaluations must agree on to be compared; `samples` too, where both have draws."""
FEW_MISTAKES, FEW = 30, "too few mistakes to tell"
"""Below so many on both sides a bootstrap over clean images promises more than it knows."""
ANSWERS = {-1: "yes", 0: "no difference beyond noise", 1: "no, it is worse", None: "one run each, so nobody can say"}
SCORES = {"ece": ("ECE", "%"), "top1": ("Top-1", "%"), "nll": ("NLL", ""), "reliability": ("Reliability", "")}


@dataclass(frozen=True)
class Side:
    """A group as it is read for the comparison."""

    group: Group
    reading: str

    @property
    def label(self) -> str:
        return self.group.label

    def values(self, score: str, clean: bool) -> list[float]:
        return self.group.values(score, self.reading, clean)

    def hits(self, clean: bool) -> list[Hits]:
        """Return what each run predicted for each image; nothing where that was not recorded of all."""
        each = [run.records(self.reading, clean) if run.parts.get("paired") else [] for run in self.group.evaluated]
        return [Hits.of(rows) for rows in each] if all(each) else []

    @property
    def protocol(self) -> dict[str, Any]:
        return self.group.evaluated[0].protocol

    @property
    def images(self) -> int:
        return self.protocol["data"]["images"]

    @property
    def wrong(self) -> int | None:
        """Count how many clean images its first run misreads."""
        top1 = row_score(condition(self.group.evaluated[0], True), self.reading, "top1")
        return None if top1 is None else round((1 - top1) * self.images)

    def spelled(self, clean: bool) -> str:
        """Write the mean ECE and its standard error, in per cent."""
        mean, error = mean_error(self.values("ece", clean))
        spread = "" if error is None else f"\u00a0±\u00a0{100 * error:.2f}"
        return f"{100 * mean:.2f}{spread}\u00a0%"


def difference(first: Side, second: Side, score: str, clean: bool) -> Interval | None:
    """Estimate second − first with the best interval there is: over seeds, over images, or none."""
    ours, theirs = second.values(score, clean), first.values(score, clean)
    if not ours or not theirs:
        return None
    if len(ours) > 1 and len(theirs) > 1:
        return (over_pairs if first.group is second.group else over_seeds)(theirs, ours)
    left, right = first.hits(clean), second.hits(clean)
    value = mean_error(ours)[0] - mean_error(theirs)[0]
    if score == "ece" and left and right:
        found = over_images(left, right, first.protocol["bins"])
        assert found.low is not None
        assert found.high is not None
        return Interval(value, value + found.low - found.value, value + found.high - found.value, "images")
    return Interval(value)


def incomparable(first: Group, second: Group) -> str:
    """Say in what the evaluations of two groups differ; return nothing if in nothing that matters."""
    protocols = [flatten(run.protocol) for each in (first, second) for run in each.evaluated]
    keys = [*SAME, *(("samples",) if first.posterior and second.posterior else ())]
    for key in keys:
        values = [protocol.get(key) for protocol in protocols]
        if any(value != values[0] for value in values):
            return key.replace("data.digest", "the images").replace("data.", "the number of ")
    return ""


def verdict(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the question, the answer, and the numbers behind it, for the page and for its readers."""
    judged = [each for each in groups if each.evaluated]
    if not judged:
        return {"question": "How well calibrated are these models?", "comparisons": [], "answer": NOTHING}
    points = [each for each in judged if not each.posterior]
    random = [each for each in judged if each.posterior]
    if len(judged) == 1:
        return _alone(judged[0])
    base = (points or random)[0]
    others = [each for each in [*random, *points] if each is not base]
    comparisons = [compare(Side(base, base.best), Side(other, other.best)) for other in others]
    first = comparisons[0]
    return {
        "question": f"Is {others[0].label} better calibrated than {base.label} here?",
        "answer": first["answer"],
        "comparisons": comparisons,
    }


NOTHING = "Nothing has been measured yet: leave out --no-compute, or name a file of byov evaluate."


def _alone(only: Group) -> dict[str, Any]:
    """Judge one group: what its draws bring or, without a posterior, how well it is calibrated."""
    if only.posterior:
        compared = compare(Side(only, "at_mean"), Side(only, "under_draws"))
        return {
            "question": f"Do its draws make {only.label} better calibrated here?",
            "answer": compared["answer"],
            "comparisons": [compared],
        }
    side = Side(only, only.best)
    conditions = ((True, "on clean images"), (False, "on shifted images"))
    parts = [f"ECE {side.spelled(clean)} {words}" for clean, words in conditions if side.values("ece", clean)]
    return {
        "question": f"How well calibrated is {only.label} here?",
        "answer": f"{'; '.join(parts)}. Name a second run to compare it with.",
        "comparisons": [],
    }


def compare(first: Side, second: Side) -> dict[str, Any]:
    """Compare two sides: the answer in a line, its sentences, and a row of numbers for each score and condition."""
    found: dict[str, Any] = {"first": _about(first), "second": _about(second), "rows": [], "sentences": [], "notes": []}
    reason = incomparable(first.group, second.group)
    if reason:
        found["answer"] = f"They cannot be compared: they were measured with different values of {reason}."
        return found
    answers: dict[bool, str] = {}
    for clean in (True, False):
        for score, (name, unit) in SCORES.items():
            gap = difference(first, second, score, clean)
            if gap is None:
                continue
            few = clean and gap.over == "images" and _within_luck(gap.value, first, second)
            sign = 0 if few and gap.sign else gap.sign
            row = {"score": score, "name": name, "unit": unit, "clean": clean, "gap": asdict(gap), "sign": sign}
            for side, key in ((first, "first"), (second, "second")):
                row[key] = estimate(side.values(score, clean))
            found["rows"].append(row)
            if score == "ece":
                answers[clean] = FEW if few and gap.sign else _word(gap, alone=first.group is second.group)
                found["sentences"].append(_sentence(first, second, gap, clean))
    found["answer"] = _answer(answers)
    found["notes"] = list(_notes(first, second, found["rows"]))
    return found


def _word(gap: Interval, alone: bool) -> str:
    """Return the answer for one condition; from one run a side it is about these runs, not about the method."""
    word = ANSWERS[gap.sign]
    if not gap.sign or gap.over != "images" or alone:
        return word
    return f"{word}, in these runs" if gap.sign < 0 else f"{word} in these runs"


def _about(side: Side) -> dict[str, Any]:
    draws = side.protocol["samples"]
    reading = f"under {draws} draws" if side.reading == "under_draws" else "at μ" if side.group.posterior else ""
    return {"label": side.label, "reading": reading, "seeds": len(side.group.evaluated)}


def _answer(answers: dict[bool, str]) -> str:
    words = list(answers.values())
    if words and all(word == ANSWERS[None] for word in words):
        return f"{words[0][0].upper()}{words[0][1:]}."
    if len(words) == 2 and words[0] == words[1]:
        both = "neither on clean nor on shifted images" if words[0] == ANSWERS[0] else "on clean and on shifted images"
        return f"{words[0][0].upper()}{words[0][1:]}, {both}."
    return "\n".join(f"{'Clean' if clean else 'Shifted'} images: {word}." for clean, word in answers.items())


def _sentence(first: Side, second: Side, gap: Interval, clean: bool) -> str:
    where = f"On {second.images:,} clean {second.protocol['data']['name']} images" if clean else "Under shift"
    ours, theirs = (side.spelled(clean) for side in (second, first))
    names = [f"{told['label']} {told['reading']}".strip() for told in (_about(second), _about(first))]
    reach = ""
    if gap.low is not None and gap.high is not None:
        reach = f", 95\u00a0% interval {100 * gap.low:+.2f} to {100 * gap.high:+.2f}".replace("-", "−")
    change = f"{100 * gap.value:+.2f}".replace("-", "−")
    return f"{where} the ECE is {ours} for {names[0]}, {theirs} for {names[1]}: {change} points{reach}."


def _notes(first: Side, second: Side, rows: Sequence[dict[str, Any]]) -> Any:
    """Yield what keeps a careful reader from believing too much."""
    over = {row["gap"]["over"] for row in rows if row["score"] == "ece"}
    counts = [len(side.group.evaluated) for side in (first, second)]
    if "seeds" in over:
        many = f"{counts[0]} and {counts[1]} seeds" if first.group is not second.group else f"{counts[0]} seeds"
        yield f"± is the standard error over {many}; intervals by {'Welch' if 'and' in many else 'Student'}'s t."
    if "images" in over:
        alone = "With one run on a side, intervals" if first.group is not second.group else "Intervals"
        yield f"{alone} come from resampling the test images. Training again may change more: name several seeds."
    if None in over:
        yield "There is one run on a side and no record of each image, so nothing tells the noise: add seeds."
    wrong = second.wrong
    if wrong is not None and wrong < FEW_MISTAKES:
        mistakes = "Only 1 clean image is" if wrong == 1 else f"Only {wrong} clean images are"
        yield f"{mistakes} misread, of {second.images:,}: too few to tell the clean calibration of good models apart."


def _within_luck(gap: float, first: Side, second: Side) -> bool:
    """Tell whether both sides make few mistakes, and the gap is less than a few more or less of them would make."""
    mistakes = [side.wrong for side in (first, second)]
    if any(wrong is None or wrong >= FEW_MISTAKES for wrong in mistakes):
        return False
    ranges = [wilson(wrong / first.images, first.images) for wrong in mistakes if wrong is not None]
    return abs(gap) < max((high - low) / 2 for low, high in ranges)
