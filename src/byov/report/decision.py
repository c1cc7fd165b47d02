"""One decision about one difference. The headline, the row of the table and the sentence under it all repeat it."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log10
from typing import Any

from byov.report.groups import Group, condition, row_score
from byov.report.intervals import Hits, Interval, mean_error, over_images, over_pairs, over_seeds, wilson

FEW_MISTAKES = 30
"""Below so many mistakes on both sides, a few more or less of them may be the whole difference."""
TRAINED_AGAIN = 2.0
"""One run a side: training again moves a score, and nothing tells how far. It is taken to be as far as another test set
would, so that a difference has to be twice the reach over the test images."""
WORDS = {-1: "yes", 0: "no difference beyond noise", 1: "no, it is worse", None: "one run each, so nobody can say"}


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


@dataclass(frozen=True)
class Decision:
    """What is said of second − first in one score, on clean or on shifted images.

    Attributes:
        gap: the difference, and its interval where there is one.
        sign: −1 or 1 where it is told, 0 where it is not, None where nothing says what noise would be.
        few: whether it is not told because both make too few mistakes.
        least: with one run a side, the least difference that is told; None where an interval decides.
    """

    gap: Interval
    sign: int | None
    few: bool = False
    least: float | None = None

    @property
    def word(self) -> str:
        """Say it in a few words, as an answer to «is the second better?» of a score of which less is better."""
        if self.few:
            return "too few mistakes to tell"
        if self.least is None:
            return WORDS[self.sign]
        return {-1: "yes, in these runs", 0: "not told by one run each", 1: "no, it is worse in these runs"}[
            self.sign or 0
        ]

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the bar around the gap: where it leaves out 0, the difference is told. None if nothing is known."""
        if self.least is not None:
            return self.gap.value - self.least, self.gap.value + self.least
        low, high = self.gap.low, self.gap.high
        return None if low is None or high is None else (low, high)

    @property
    def reach(self) -> str:
        """Say how sure it is: the interval and what it covers, or what one run each cannot tell."""
        low, high, over = self.gap.low, self.gap.high, self.gap.over
        if self.least is not None:
            return f"one run each: differences below about {rounded_up(100 * self.least)} points are not told"
        if low is None or high is None:
            return ""
        what = "seeds" if over == "seeds" else "the test images"
        return f"95\u00a0% interval over {what} {100 * low:+.2f} to {100 * high:+.2f}".replace("-", "−")


def rounded_up(points: float) -> str:
    """Write a number with two digits at most, never below it."""
    if points <= 0:
        return "0"
    place = 1 - floor(log10(points))
    return f"{-floor(-points * 10**place + 1e-9) / 10**place:.{max(0, place)}f}"


def decide(first: Side, second: Side, score: str, clean: bool) -> Decision | None:
    """Decide on second − first, by seeds where both have several, else by the images; None without the score."""
    ours, theirs = second.values(score, clean), first.values(score, clean)
    if not ours or not theirs:
        return None
    gap = _difference(first, second, score, clean, theirs, ours)
    if clean and score in ("ece", "top1") and _within_luck(gap.value, first, second):
        return Decision(gap, 0 if gap.low is not None else None, few=True)
    if gap.over == "images" and first.group is not second.group:
        least = TRAINED_AGAIN * (gap.high - gap.value)  # type: ignore[operator]
        return Decision(gap, (gap.value > least) - (gap.value < -least), least=least)
    return Decision(gap, gap.sign)


def _difference(first: Side, second: Side, score: str, clean: bool, theirs: list[float], ours: list[float]) -> Interval:
    """Estimate second − first with the best interval there is: over seeds, over images, or none."""
    if len(ours) > 1 and len(theirs) > 1:
        return (over_pairs if first.group is second.group else over_seeds)(theirs, ours)
    left, right = first.hits(clean), second.hits(clean)
    value = mean_error(ours)[0] - mean_error(theirs)[0]
    if score == "ece" and left and right:
        found = over_images(left, right, first.protocol["bins"])
        assert found.high is not None
        return Interval.around(value, found.high - found.value, "images")
    return Interval(value)


def _within_luck(gap: float, first: Side, second: Side) -> bool:
    """Tell whether both sides make few mistakes, and the gap is less than a few more or less of them would make."""
    mistakes = [side.wrong for side in (first, second)]
    if any(wrong is None or wrong >= FEW_MISTAKES for wrong in mistakes):
        return False
    ranges = [wilson(wrong / first.images, first.images) for wrong in mistakes if wrong is not None]
    return abs(gap) < max((high - low) / 2 for low, high in ranges)
