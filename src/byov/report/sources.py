"""What a report is made of: run folders, and the files of `byov evaluate`, `probe`, `prune` …."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from byov.evaluation import results
from byov.pruning.curves import KIND as SWEEP
from byov.report.gallery import figure_uri
from byov.train import checkpoint

CHECKPOINT = "checkpoint.safetensors"


@dataclass(eq=False)
class Run:
    """One model of the report, and everything that has been recorded of it so far."""

    name: str
    path: Path | None = None
    """Its folder; None where only files of its results are at hand."""
    file: Path | None = None
    """Its checkpoint."""
    about: dict[str, Any] = field(default_factory=dict)
    """What its checkpoint says: kind, config, data, shape, kl_scale."""
    parts: dict[str, Any] = field(default_factory=dict)
    """What the report itself has measured, by the part's name; `paired` if its images are those of `evaluation`."""
    evaluation: dict[str, Any] | None = None
    """The content of a file of `byov evaluate`, its rows as `Row`."""
    probe: dict[str, Any] | None = None
    log: list[dict[str, Any]] = field(default_factory=list)
    layer_log: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the reader should know, such as a file that was set aside."""

    @property
    def kind(self) -> str | None:
        return self.about.get("kind") or (self.evaluation or {}).get("protocol", {}).get("model", {}).get("kind")

    @property
    def config(self) -> dict[str, Any]:
        return self.about.get("config", {})

    @property
    def posterior(self) -> bool:
        """Whether there is anything to draw from."""
        if self.config:
            return self.config["posterior"]["family"] != "none"
        if self.evaluation is not None:
            return bool(self.evaluation["protocol"]["model"]["posterior"])
        return any(key.startswith("linear_draws/") for key in (self.probe or {}).get("scores", {}))

    @property
    def seed(self) -> int | None:
        return self.config.get("train", {}).get("seed")


@dataclass(frozen=True)
class Sources:
    """Runs in the order they were named, and what other commands found: `reproduce`, `explore` and `prune`."""

    runs: list[Run]
    outcomes: list[dict[str, Any]]
    sweeps: list[dict[str, Any]]
    explored: list[dict[str, Any]]


def gather(paths: Sequence[Path]) -> Sources:
    """Everything that was named, read and put together; what cannot be read is refused in one sentence."""
    if not paths:
        raise ValueError("A report needs at least one run's folder or file of results.")
    runs = [_open_run(path) for path in dict.fromkeys(paths) if not _is_json(path)]
    sources = Sources(runs, [], [], [])
    for path in dict.fromkeys(path for path in paths if _is_json(path)):
        _take_file(path, sources)
    return sources


def file_digest(path: Path) -> str:
    """The first 12 hex digits of a file's SHA-256: which weights a number was measured on."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def read_json(path: Path) -> Any:
    """What a JSON file holds; one that holds something else is refused."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError):
        raise ValueError(f"{path} is not a JSON file.") from None


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one per line; a line cut short by a kill is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            item = json.loads(line)
        except ValueError:
            continue
        if isinstance(item, dict):
            found.append(item)
    return found


def finite(value: Any) -> Any:
    """The same tree with None for NaN and infinities, which JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _is_json(path: Path) -> bool:
    return path.suffix == ".json" and not path.is_dir()


def _open_run(path: Path) -> Run:
    file = path / CHECKPOINT if path.is_dir() else path
    if not file.is_file():
        what = f"there is no {CHECKPOINT} in it" if path.is_dir() else "there is nothing there"
        raise ValueError(f"{path} is no run: {what}. Name a run's folder or a .json file of results.")
    state = checkpoint.peek(file)
    about = state.get("recipe") if isinstance(state, dict) else None
    if not isinstance(about, dict) or about.get("kind") not in ("pretrain", "train"):
        raise ValueError(f"{path} is not a run of byov pretrain or byov train.")
    folder = file.parent
    run = Run(str(path), folder, file, about, log=lines(folder / "log.jsonl"), layer_log=lines(folder / "layers.jsonl"))
    run.about = {key: value for key, value in about.items() if key != "module"}
    run.about["step"] = state.get("step")
    return run


def _take_file(path: Path, sources: Sources) -> None:
    """Give a file to the run it speaks of, which is a new one if nobody named that."""
    runs = sources.runs
    if not path.is_file():
        raise FileNotFoundError(f"There is no file of results at {path}.")
    content = read_json(path)
    if isinstance(content, dict) and content.get("kind") == results.KIND:
        evaluation = results.read(path)
        if not evaluation["rows"]:
            raise ValueError(f"{path} holds no row yet: run its command again.")
        run = _of(evaluation["protocol"]["model"]["name"], path, runs, "evaluation")
        run.evaluation = evaluation
    elif isinstance(content, dict) and isinstance(content.get("scores"), dict) and "protocol" in content:
        _of(content["protocol"].get("run", path.stem), path, runs, "probe").probe = content
    elif isinstance(content, dict) and isinstance(content.get("comparisons"), list):
        shown = {key: value for key, value in content.items() if key != "data"}
        sources.outcomes.append({"file": str(path), "figure": figure_uri(path.with_name("figure.png")), **shown})
    elif isinstance(content, dict) and {"what", "protocol", "result"} <= set(content):
        sources.explored.append({"file": str(path), "figure": figure_uri(path.with_suffix(".png")), **content})
    elif isinstance(content, dict) and content.get("kind") == SWEEP and isinstance(content.get("curves"), list):
        sources.sweeps.append({"file": str(path), **content})
    else:
        known = "byov evaluate, probe, prune, explore or reproduce"
        raise ValueError(f"{path} is not a file that {known} writes, so the report cannot show it.")


def _of(name: str, path: Path, runs: list[Run], what: str) -> Run:
    """The run that a file calls `name`; a second file of the same kind is a model of its own."""
    for run in runs:
        same = run.name == name or (run.path is not None and _same(run.path, Path(name)))
        if same and getattr(run, what) is None:
            return run
    taken = {run.name for run in runs}
    run = Run(name if name not in taken else f"{name} ({path.stem})")
    runs.append(run)
    return run


def _same(a: Path, b: Path) -> bool:
    b = b.parent if b.name == CHECKPOINT else b
    return b.is_dir() and a.samefile(b)


def thinned(items: Sequence[Any], most: int = 200) -> list[Any]:
    """At most `most` of the items, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    step = (len(items) - 1) / (most - 1)
    return [items[round(i * step)] for i in range(most)]


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A tree in one level, its keys joined by points."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def common(values: Iterable[Any]) -> Any:
    """The one value that all have; None where they differ or there is none."""
    each = list(values)
    return each[0] if each and all(value == each[0] for value in each) else None
