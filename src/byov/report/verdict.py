"""The answer at the top of the page: is one model better calibrated than another, beyond noise?

Each difference is decided once; the headline, the table row and the sentence all use that decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import ceil, floor, log10
from typing import Any

from byov.report.groups import Group, condition, row_score, twin
from byov.report.intervals import ImageRecords, Interval, estimate, mean_error, over_images, over_seeds, wilson
from byov.train.config import flatten

SAME = {
    "data.digest": ("images", "--data, --split and --limit"),
    "data.images": ("numbers of images", "--limit"),
    "bins": ("bins", "--bins"),
    "shifts": ("shifts", "--shift and --severities"),
    "severities": ("severities", "--shift and --severities"),
    "samples": ("numbers of draws", "--samples"),
}
"""What two evaluations must share to be compared, in words and as options; `samples` only if both have draws."""
SCORES = {"ece": ("ECE", "%"), "top1": ("Top-1", "%"), "nll": ("NLL", ""), "reliability": ("Reliability", "")}
NOTHING = "Nothing has been measured yet: leave out --no-compute, or name a file of byov evaluate."
FEW_MISTAKES = 30
"""With fewer mistakes than this on both sides, a few more or fewer may explain the whole difference."""
TRAINED_AGAIN = 2.0
"""With one run on each side, the effect of training again is unknown. It is assumed to equal that of another test set,
so a difference must be twice the half-width of the interval over test images."""
NO_BAR = "the noise is unknown"
WORDS = {-1: "yes", 0: "no difference beyond noise", 1: "no, it is worse", None: "unknown with one run each"}
WORDS_OF_SINGLE_RUNS = {-1: "yes, in these runs", 0: "undecided with one run each", 1: "no, it is worse in these runs"}


@dataclass(frozen=True)
class Side:
    """A group with the reading used in a comparison."""

    group: Group
    reading: str

    @property
    def label(self) -> str:
        return self.group.label

    def values(self, score: str, clean: bool) -> list[float]:
        return self.group.values(score, self.reading, clean)

    def hits(self, clean: bool) -> list[ImageRecords]:
        """Return the per-image predictions of each run; empty unless all runs have recorded them."""
        each = [run.records(self.reading, clean) if run.parts.get("paired") else [] for run in self.group.evaluated]
        return [ImageRecords.of(rows) for rows in each] if all(each) else []

    @property
    def protocol(self) -> dict[str, Any]:
        return self.group.evaluated[0].protocol

    @property
    def images(self) -> int:
        return self.protocol["data"]["images"]

    @property
    def wrong(self) -> int | None:
        """Return the number of clean images that the first run misclassifies."""
        top1 = row_score(condition(self.group.evaluated[0], True), self.reading, "top1")
        return None if top1 is None else round((1 - top1) * self.images)


@dataclass(frozen=True)
class Decision:
    """The decision about second − first in one score, on clean or shifted images.

    Attributes:
        gap: the difference, with its interval if there is one.
        sign: −1 or 1 if the difference is beyond noise, 0 if it is not, None if the noise is unknown.
        few: whether both sides make too few mistakes to decide.
        least: with one run on each side, the least difference that counts; None if an interval decides.
    """

    gap: Interval
    sign: int | None
    few: bool = False
    least: float | None = None

    @property
    def word(self) -> str:
        """Return the answer to "is the second better?" in a few words, for a score where lower is better."""
        if self.few:
            return "too few mistakes to tell"
        if self.least is None:
            return WORDS[self.sign]
        return WORDS_OF_SINGLE_RUNS[self.sign or 0]

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the bar around the gap, which excludes 0 if the difference counts; None if the noise is unknown."""
        if self.least is not None:
            return self.gap.value - self.least, self.gap.value + self.least
        low, high = self.gap.low, self.gap.high
        return None if low is None or high is None else (low, high)

    @property
    def bar(self) -> str:
        """Describe that bar."""
        if self.interval is None:
            return NO_BAR
        interval = f"95\u00a0% interval over {'seeds' if self.gap.over == 'seeds' else 'the test images'}"
        return f"a {interval}" if self.least is None else f"with one run each, twice the {interval}"

    @property
    def reach(self) -> str:
        """Describe the uncertainty: the interval, or the least difference that one run each can resolve."""
        low, high, over = self.gap.low, self.gap.high, self.gap.over
        if self.least is not None:
            return f"with one run each, differences below about {rounded_up(100 * self.least)} points are undecided"
        if low is None or high is None:
            return ""
        what = "seeds" if over == "seeds" else "the test images"
        return f"95\u00a0% interval over {what} {100 * low:+.2f} to {100 * high:+.2f}".replace("-", "−")


def rounded_up(points: float) -> str:
    """Format a number with at most two digits, rounded up."""
    if points <= 0:
        return "0"
    place = 1 - floor(log10(points))
    return f"{ceil(points * 10**place - 1e-9) / 10**place:.{max(0, place)}f}"


def decide(first: Side, second: Side, score: str, clean: bool) -> Decision | None:
    """Decide on second − first, over seeds if both sides have several, otherwise over images; None without scores."""
    ours, theirs = second.values(score, clean), first.values(score, clean)
    if not ours or not theirs:
        return None
    gap = _difference(first, second, score, clean, theirs, ours)
    if clean and score in ("ece", "top1") and _few_mistakes(gap.value, first, second):
        return Decision(gap, 0 if gap.low is not None else None, few=True)
    if gap.over == "images" and first.group is not second.group:
        least = TRAINED_AGAIN * (gap.high - gap.value)  # type: ignore[operator]
        return Decision(gap, (gap.value > least) - (gap.value < -least), least=least)
    return Decision(gap, gap.sign)


def _difference(first: Side, second: Side, score: str, clean: bool, theirs: list[float], ours: list[float]) -> Interval:
    """Estimate second − first with the best available interval: over seeds, over images, or none."""
    if len(ours) > 1 and len(theirs) > 1:
        return over_seeds(theirs, ours, paired=first.group is second.group)
    left, right = first.hits(clean), second.hits(clean)
    value = mean_error(ours)[0] - mean_error(theirs)[0]
    if score == "ece" and left and right:
        found = over_images(left, right, first.protocol["bins"])
        assert found.high is not None
        return Interval.around(value, found.high - found.value, "images")
    return Interval(value)


def _few_mistakes(gap: float, first: Side, second: Side) -> bool:
    """Return whether both sides make few mistakes and the gap is within the uncertainty of their number."""
    mistakes = [side.wrong for side in (first, second)]
    if any(wrong is None or wrong >= FEW_MISTAKES for wrong in mistakes):
        return False
    ranges = [wilson(wrong / first.images, first.images) for wrong in mistakes if wrong is not None]
    return abs(gap) < max((high - low) / 2 for low, high in ranges)


# In words


def incomparable(first: Group, second: Group) -> tuple[str, str] | None:
    """Return how the evaluations of two groups differ, and what to do; None if they can be compared."""
    runs = [*first.evaluated, *second.evaluated]
    protocols = [flatten(run.protocol) for run in runs]
    for key, (what, remedy) in SAME.items():
        if key == "samples" and not (first.posterior and second.posterior):
            continue
        values = [protocol.get(key) for protocol in protocols]
        other = next((run for run, value in zip(runs, values, strict=True) if value != values[0]), None)
        if other is not None:
            folders = "" if key.startswith("data.") else ", or name only the run folders and add --renew"
            return (
                f"They cannot be compared: {runs[0].source} and {other.source} were measured with different {what}.",
                f"Evaluate both again with the same {remedy}{folders}.",
            )
    return None


def verdict(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the question, the answer, and the numbers behind it.

    A model with a posterior is compared with its twin, the most similar point model.
    """
    judged = [each for each in groups if each.evaluated]
    if not judged:
        return {"question": "How well calibrated are these models?", "comparisons": [], "answer": NOTHING}
    if len(judged) == 1:
        return _alone(judged[0])
    points = [each for each in judged if not each.posterior]
    random = [each for each in judged if each.posterior]
    if points:
        pairs = [(twin(each, points), each) for each in random]
        paired = [each for pair in pairs for each in pair] or points[:1]
        pairs += [(points[0], each) for each in points if each not in paired]
    else:
        pairs = [(random[0], each) for each in random[1:]]
    comparisons = [compare(Side(base, base.best), Side(other, other.best)) for base, other in pairs]
    base, other = pairs[0]
    return {
        "question": f"Is {other.label} better calibrated than {base.label} here?",
        "answer": comparisons[0]["answer"],
        "comparisons": comparisons,
    }


def _alone(only: Group) -> dict[str, Any]:
    """Judge a single group: the effect of its draws or, without a posterior, its calibration."""
    if only.posterior:
        compared = compare(Side(only, "at_mean"), Side(only, "under_draws"))
        return {
            "question": f"Do its draws make {only.label} better calibrated here?",
            "answer": compared["answer"],
            "comparisons": [compared],
        }
    side = Side(only, only.best)
    conditions = ((True, "on clean images"), (False, "on shifted images"))
    parts = [f"ECE {_spelled(side, clean)} {words}" for clean, words in conditions if side.values("ece", clean)]
    return {
        "question": f"How well calibrated is {only.label} here?",
        "answer": f"{'; '.join(parts)}. Name a second run to compare it with.",
        "comparisons": [],
    }


def compare(first: Side, second: Side) -> dict[str, Any]:
    """Compare two sides: the answer in a line, its sentences, and a row of numbers for each score and condition."""
    found: dict[str, Any] = {"first": _about(first), "second": _about(second), "rows": [], "sentences": [], "notes": []}
    if differ := incomparable(first.group, second.group):
        found["answer"], found["sentences"] = differ[0], [differ[1]]
        return found
    decisions: dict[bool, Decision] = {}
    for clean in (True, False):
        for score, (name, unit) in SCORES.items():
            decision = decide(first, second, score, clean)
            if decision is None:
                continue
            row = {"score": score, "name": name, "unit": unit, "clean": clean, **asdict(decision)}
            row |= {"interval": decision.interval, "bar": decision.bar}
            for side, key in ((first, "first"), (second, "second")):
                row[key] = estimate(side.values(score, clean))
            found["rows"].append(row)
            if score == "ece":
                decisions[clean] = decision
                found["sentences"].append(_sentence(first, second, decision, clean))
    found["answer"] = _answer({clean: decision.word for clean, decision in decisions.items()})
    found["notes"] = list(_notes(first, second, decisions))
    return found


def bars(comparisons: Sequence[dict[str, Any]]) -> str:
    """Return the caption of the bars around the differences in ECE, by row if they differ."""
    names: dict[str, list[str]] = {}
    for each in comparisons:
        for row in each["rows"]:
            if row["score"] == "ece":
                label = f", {each['second']['label']}" if len(comparisons) > 1 else ""
                names.setdefault(row["bar"], []).append(f"{'clean' if row['clean'] else 'shifted'}{label}")
    parts = ["If a bar crosses 0, the difference is undecided."]
    for bar, rows in names.items():
        where = f" ({'; '.join(rows)})" if len(names) > 1 else ""
        parts.append(f"{'No bar' if bar == NO_BAR else 'Bar'}{where}: {bar}.")
    return " ".join(parts)


def _about(side: Side) -> dict[str, Any]:
    draws = side.protocol["samples"]
    reading = f"under {draws} draws" if side.reading == "under_draws" else "at μ" if side.group.posterior else ""
    return {"label": side.label, "reading": reading, "seeds": len(side.group.evaluated)}


def _answer(answers: dict[bool, str]) -> str:
    words = list(answers.values())
    if words and all(word == WORDS[None] for word in words):
        return f"{words[0][0].upper()}{words[0][1:]}."
    if len(words) == 2 and words[0] == words[1]:
        both = "neither on clean nor on shifted images" if words[0] == WORDS[0] else "on clean and on shifted images"
        return f"{words[0][0].upper()}{words[0][1:]}, {both}."
    return "\n".join(f"{'Clean' if clean else 'Shifted'} images: {word}." for clean, word in answers.items())


def _spelled(side: Side, clean: bool) -> str:
    """Format the mean ECE and its standard error, in per cent."""
    mean, error = mean_error(side.values("ece", clean))
    spread = "" if error is None else f"\u00a0±\u00a0{100 * error:.2f}"
    return f"{100 * mean:.2f}{spread}\u00a0%"


def _sentence(first: Side, second: Side, decision: Decision, clean: bool) -> str:
    where = f"On {second.images:,} clean {second.protocol['data']['name']} images" if clean else "Under shift"
    ours, theirs = (_spelled(side, clean) for side in (second, first))
    names = [f"{side['label']} {side['reading']}".strip() for side in (_about(second), _about(first))]
    change = f"{100 * decision.gap.value:+.2f}".replace("-", "−")
    reach = f"; {decision.reach}" if decision.reach else ""
    return f"{where} the ECE is {ours} for {names[0]}, {theirs} for {names[1]}: {change} points{reach}."


def _notes(first: Side, second: Side, decisions: dict[bool, Decision]) -> Iterator[str]:
    """Yield notes on the limits of a comparison."""
    over = {decision.gap.over for decision in decisions.values()}
    counts = [len(side.group.evaluated) for side in (first, second)]
    alone = first.group is second.group
    if "seeds" in over:
        many = f"{counts[0]} seeds" if alone else f"{counts[0]} and {counts[1]} seeds"
        yield f"± is the standard error over {many}; intervals are from {'Student' if alone else 'Welch'}'s t-test."
    if "images" in over and alone:
        yield "Intervals come from resampling the test images; they do not include the effect of training again."
    elif "images" in over:
        yield (
            "With one run on a side, the effect of training again is unknown. It is assumed to equal that of another"
            " test set, estimated by resampling the images: name several seeds to measure it."
        )
    if None in over:
        yield "With one run on a side and no records of single images, the noise is unknown: add seeds."
    if True in decisions and decisions[True].few:
        wrong = " and ".join(str(side.wrong) for side in (second, first))
        yield f"Of {second.images:,} clean images, {wrong} are misclassified: too few to compare the two."
