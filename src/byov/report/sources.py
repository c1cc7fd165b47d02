"""The input of a report: runs, and the files of `byov evaluate`, `probe`, `prune`, `explore` and `reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from byov.evaluation import results
from byov.evaluation.rows import CLEAN, Row
from byov.files import REAL, mismatch, read_json
from byov.report.drawing import figure_uri
from byov.runs import CHECKPOINT, Header, read_header

COMPARISON = {"quantity": str, "ours?": REAL, "paper?": REAL, "error?": REAL, "verdict?": str}
NUMBERS = [(*REAL, type(None))]
CURVE = {"model": str, "by": str, "seed?": int, "sparsity": [REAL], "top1": NUMBERS, "ece": NUMBERS, "nll?": NUMBERS}
PATTERNS: dict[str, tuple[Any, Any]] = {
    "probe": ({"scores": {}, "protocol": {}}, {"scores": {"*": REAL}, "protocol": {"run?": str}}),
    "reproduce": (
        {"comparisons": []},
        {"comparisons": [COMPARISON], "title?": str, "name?": str, "note?": str},
    ),
    "explore": ({"what": str, "protocol": {}, "result": (dict, list)}, {}),
    "prune": ({"kind": str, "curves": []}, {"curves": [CURVE]}),
}
"""By command: the pattern that identifies its files, and the pattern of what the page reads."""


@dataclass(eq=False)
class ReportedRun:
    """One trained model of the report, and everything recorded about it."""

    name: str
    header: Header | None = None
    """The header of its checkpoint; None if only results files are given."""
    parts: dict[str, Any] = field(default_factory=dict)
    """The parts measured by the report; `paired` is set if its images are those of `evaluation`."""
    evaluation: dict[str, Any] | None = None
    """The content of a file of `byov evaluate`, with its rows as `Row`."""
    probe: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    """Notes for the reader, such as an ignored file."""

    @property
    def about(self) -> dict[str, Any]:
        """Return the content of its checkpoint: kind, config, data, shape, kl_scale."""
        return {} if self.header is None else self.header.about

    @property
    def kind(self) -> str | None:
        return self.about.get("kind") or (self.protocol.get("model") or {}).get("kind")

    @property
    def config(self) -> dict[str, Any]:
        return self.about.get("config", {})

    @property
    def protocol(self) -> dict[str, Any]:
        """Return the protocol of its evaluation."""
        return {} if self.evaluation is None else self.evaluation["protocol"]

    @property
    def rows(self) -> list[Row]:
        """Return the rows of its evaluation."""
        return [] if self.evaluation is None else self.evaluation["rows"]

    @property
    def source(self) -> str:
        """Return the results file of its evaluation, or its name if the report measured it."""
        return (self.evaluation or {}).get("file", self.name)

    @property
    def posterior(self) -> bool:
        """Return whether it has a posterior."""
        if self.config:
            return self.config["posterior"]["family"] != "none"
        if self.evaluation is not None:
            return bool(self.protocol["model"]["posterior"])
        return any(key.startswith("linear_draws/") for key in (self.probe or {}).get("scores", {}))

    @property
    def seed(self) -> int | None:
        return self.config.get("train", {}).get("seed")

    def records(self, reading: str, clean: bool) -> list[dict[str, Any]]:
        """Return the per-image records: one for clean images, or one for every shift."""
        images = self.parts.get("images", {})
        return [row[reading] for key, row in images.items() if (key == f"{CLEAN}/0") == clean]

    def is_at(self, name: str) -> bool:
        """Return whether a run named in a results file is this one."""
        path = Path(name).parent if Path(name).name == CHECKPOINT else Path(name)
        there = self.header is not None and path.is_dir() and self.header.folder.samefile(path)
        return self.name == name or there


@dataclass(frozen=True)
class Sources:
    """Runs in the order given, and the results of `reproduce`, `prune` and `explore`."""

    runs: list[ReportedRun]
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    sweeps: list[dict[str, Any]] = field(default_factory=list)
    explored: list[dict[str, Any]] = field(default_factory=list)


def gather(paths: Sequence[Path]) -> Sources:
    """Read all paths and assign each file to its run; raise if one cannot be read."""
    if not paths:
        raise ValueError("A report needs at least one run folder or results file.")
    files = [path for path in dict.fromkeys(paths) if path.suffix == ".json" and not path.is_dir()]
    folders = [path for path in dict.fromkeys(paths) if path not in files]
    sources = Sources([ReportedRun(str(path), read_header(path)) for path in folders])
    for path in files:
        _take_file(path, sources)
    return sources


def _take_file(path: Path, sources: Sources) -> None:
    """Assign a file to its run, adding the run if it was not given."""
    content = read_json(path)
    content = content if isinstance(content, dict) else {}
    if content.get("kind") == results.KIND:
        evaluation = {**results.read(path), "file": str(path)}
        if not evaluation["rows"]:
            raise ValueError(f"{path} holds no rows yet: run its command again.")
        _owner(evaluation["protocol"]["model"]["name"], path, sources.runs, "evaluation").evaluation = evaluation
        return
    kind = next((kind for kind, (tells, _) in PATTERNS.items() if not mismatch(content, tells)), None)
    if kind is None:
        known = "byov evaluate, probe, prune, explore or reproduce"
        raise ValueError(f"{path} is not a file that {known} writes, so the report cannot show it.")
    if wrong := mismatch(content, PATTERNS[kind][1]):
        raise ValueError(f"{path} is not a valid file of byov {kind}: {wrong}.")
    if kind == "probe":
        _owner(content["protocol"].get("run") or path.stem, path, sources.runs, "probe").probe = content
    elif kind == "reproduce":
        shown = {key: value for key, value in content.items() if key != "data"}
        sources.outcomes.append({**shown, "file": str(path), "figure": _figure(path.with_name("figure.png"))})
    elif kind == "explore":
        sources.explored.append({**content, "file": str(path), "figure": _figure(path.with_suffix(".png"))})
    else:
        sources.sweeps.append({**content, "file": str(path)})


def _figure(path: Path) -> str | None:
    try:
        return figure_uri(path)
    except (OSError, ValueError, Image.DecompressionBombError):
        raise ValueError(f"{path} is an image that cannot be read: remove it, or create it again.") from None


def _owner(name: str, path: Path, runs: list[ReportedRun], what: str) -> ReportedRun:
    """Return the run that a file calls `name`; a second file of the same kind becomes a separate model."""
    for run in runs:
        if run.is_at(name) and getattr(run, what) is None:
            return run
    taken = {run.name for run in runs}
    runs.append(ReportedRun(name if name not in taken else f"{name} ({path.stem})"))
    return runs[-1]


def evenly_spaced(items: Sequence[Any], most: int = 200) -> list[Any]:
    """Return at most `most` items, evenly spaced, including the first and the last."""
    if len(items) <= most:
        return list(items)
    step = (len(items) - 1) / (most - 1)
    return [items[round(i * step)] for i in range(most)]
