"""Runs that differ only in their seed form a group; each group is read at μ and, with a posterior, under draws."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from byov.evaluation.rows import CLEAN, Row, summarise
from byov.report.sources import ReportedRun
from byov.ssl.registry import OBJECTIVES
from byov.train.config import flatten
from byov.train.run import RESUMABLE

FAMILIES = {
    "none": "Point network",
    "swag": "SWAG",
    "gaussian": "Gaussian",
    "dropout": "Dropout",
    "dropconnect": "DropConnect",
    "ensemble": "Ensemble",
    "emp": "EMP",
    "ecmp": "ECMP",
}
UNCOMPARED = {"train.seed", *RESUMABLE}
"""Settings that may differ within a group."""


@dataclass(frozen=True, eq=False)
class Group:
    """One model, trained with one or more seeds."""

    label: str
    runs: list[ReportedRun]

    @property
    def posterior(self) -> bool:
        return self.runs[0].posterior

    @property
    def evaluated(self) -> list[ReportedRun]:
        return [run for run in self.runs if run.evaluation is not None]

    @property
    def readings(self) -> list[str]:
        return ["at_mean", "under_draws"] if self.posterior else ["at_mean"]

    @property
    def best(self) -> str:
        """Return the model's best reading: under draws if it has a posterior, otherwise at μ."""
        return self.readings[-1]

    def values(self, score: str, reading: str, clean: bool) -> list[float]:
        """Return a score of each evaluated run, on clean images or averaged over the shifts."""
        found = [row_score(condition(run, clean), reading, score) for run in self.evaluated]
        return [value for value in found if value is not None]


def condition(run: ReportedRun, clean: bool) -> Row | None:
    """Return the row of the clean images, or the mean row of the shifts."""
    rows = (run.evaluation or {}).get("rows", [])
    if clean:
        return next((row for row in rows if row.shift == CLEAN), None)
    means = summarise(rows)
    return means[-1] if means else None


def row_score(row: Row | None, reading: str, score: str) -> float | None:
    part = None if row is None else getattr(row, reading)
    return None if part is None else part.get(score)


def group(runs: Sequence[ReportedRun]) -> list[Group]:
    """Group runs in their order, groups without a posterior first, since the others are compared with them."""
    together: dict[str, list[ReportedRun]] = {}
    for run in runs:
        together.setdefault(_key(run), []).append(run)
    each = sorted(together.values(), key=lambda members: members[0].posterior)  # stable
    return [Group(label, members) for label, members in zip(_labels(each), each, strict=True)]


def each_reading(groups: Sequence[Group]) -> Iterator[tuple[str, Group, str]]:
    """Yield (series id, group, reading) for every group at μ and, with a posterior, under draws."""
    for i, group in enumerate(groups):
        for reading in group.readings:
            yield f"{i}/{reading}", group, reading


def twin(group: Group, points: Sequence[Group]) -> Group:
    """Return the most similar point model: of the same kind, with the fewest different settings outside [posterior]."""
    own = _beside_posterior(group)

    def distance(point: Group) -> tuple[bool, int]:
        other = _beside_posterior(point)
        differ = sum(own.get(key) != other.get(key) for key in {*own, *other})
        return point.runs[0].kind != group.runs[0].kind, differ

    return min(points, key=distance)  # the first, if several are equally close


def _beside_posterior(group: Group) -> dict[str, Any]:
    settings = flatten(group.runs[0].config)
    return {k: v for k, v in settings.items() if k not in UNCOMPARED and not k.startswith("posterior.")}


def _key(run: ReportedRun) -> str:
    if not run.config:
        stem = re.sub(r"[-_ ]?(seed)?[-_ ]?\d+$", "", run.name)
        return json.dumps(["file", run.kind, run.posterior, stem])
    settings = {key: value for key, value in flatten(run.config).items() if key not in UNCOMPARED}
    return json.dumps([run.kind, settings], sort_keys=True)


def method(run: ReportedRun) -> str:
    """Return the name of a run's method for the reader."""
    if run.config:
        family = run.config["posterior"]["family"]
        return FAMILIES.get(family, run.name) if run.kind == "train" else _pretrained(run, family)
    if run.kind == "pretrain" or (run.kind is None and run.probe is not None):
        return "BYOV" if run.posterior else "BYOL"
    return run.name


def _pretrained(run: ReportedRun, family: str) -> str:
    """Return the name of a run without labels: its objective and its family, or BYOV."""
    objective = run.config.get("ssl", {}).get("objective", "byol")
    if (objective, family) == ("byol", "gaussian"):
        return "BYOV"
    kind = OBJECTIVES.get(objective)
    title = objective.rpartition(":")[2] if kind is None else kind.title
    return title if family == "none" else f"{title}, {FAMILIES.get(family, family)}"


def _labels(each: Sequence[list[ReportedRun]]) -> list[str]:
    """Return the names of the methods, followed by the settings that differ if groups share a name."""
    names = [method(members[0]) for members in each]
    labels = []
    for name, members in zip(names, each, strict=True):
        rivals = [other for other, theirs in zip(each, names, strict=True) if theirs == name]
        labels.append(name if len(rivals) == 1 else f"{name}, {_difference(members[0], rivals)}")
    taken: dict[str, int] = {}
    for i, label in enumerate(labels):
        taken[label] = taken.get(label, 0) + 1
        labels[i] = label if taken[label] == 1 else f"{label} ({taken[label]})"
    return labels


def _difference(run: ReportedRun, rivals: Sequence[list[ReportedRun]]) -> str:
    settings = [flatten(rival[0].config) for rival in rivals]
    differ = [
        key
        for key in settings[0]
        if key not in UNCOMPARED and any(other.get(key) != settings[0][key] for other in settings[1:])
    ]
    own = flatten(run.config)
    if not differ or len(differ) > 3:
        return PurePath(run.name).name
    return ", ".join(f"{key.rpartition('.')[2]} {_short(own.get(key))}" for key in differ)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 24 else f"{text[:23]}…"
