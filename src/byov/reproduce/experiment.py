"""One table or figure of a paper, as something that can be run again: a name, a function, and what came of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, Literal

from byov.files import write_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scale = Literal["quick", "full"]
"""`quick` is minutes on two CPU cores (digits, small tables); `full` is what a GPU is for (CIFAR, all splits)."""


@dataclass(frozen=True)
class Comparison:
    """One line of `paper | ours | verdict`."""

    quantity: str
    ours: float
    paper: float | None = None
    """None where the paper has no number."""
    error: float | None = None
    """The standard error of ours, where there are several seeds or splits."""
    verdict: str = ""


@dataclass(frozen=True)
class Outcome:
    """What an experiment found: the numbers, a picture of them, and how they compare."""

    data: dict[str, Any]
    """All that the figure is drawn from, and the protocol: JSON, the same for the same seed."""
    comparisons: list[Comparison] = field(default_factory=list)
    figure: Figure | None = None
    note: str = ""


@dataclass(frozen=True)
class Context:
    """Where an experiment runs, and where it keeps what it has done so far."""

    out: Path
    scale: Scale = "quick"
    seed: int = 0
    device: str = "cpu"
    root: str | None = None
    """The folder of the data sets; None: as `byov.data` finds it."""
    runs: tuple[Path, ...] = ()
    """Runs of the user's own to look at, in the place of those that the experiment would train."""

    def kept(
        self,
        name: str,
        protocol: dict[str, Any],
        make: Callable[[], dict[str, Any]],
        defaults: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """`make()`, or what it gave in an earlier run of the same protocol; a part of an interrupted experiment.

        A protocol from before there was a setting has that of `defaults`.
        """
        path = self.out / "parts" / f"{name}.json"
        asked = plain({"seed": self.seed, "scale": self.scale, **protocol})
        if path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))
            if same_protocol(before.get("protocol"), asked, defaults):
                return before["result"]
        result = plain(make())
        write_json(path, {"protocol": asked, "result": result})
        return result


def same_protocol(before: Any, asked: dict[str, Any], defaults: dict[str, Any] | None = None) -> bool:
    """Whether what was made under one protocol is what another asks for."""
    known = {key: value for key, value in plain(defaults or {}).items() if key in asked}
    return isinstance(before, dict) and known | before == asked


@dataclass(frozen=True)
class Experiment:
    """A table or figure by name (`byov/figure4`, `patching/table12`)."""

    name: str
    title: str
    run: Callable[[Context], Outcome]


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(name: str, title: str) -> Callable[[Callable[[Context], Outcome]], Callable[[Context], Outcome]]:
    """Put a function on the list of what can be reproduced."""

    def register(run: Callable[[Context], Outcome]) -> Callable[[Context], Outcome]:
        EXPERIMENTS[name] = Experiment(name, title, run)
        return run

    return register


def discover() -> dict[str, Experiment]:
    """All experiments: every module of this package is imported, and so puts its own on the list."""
    import byov.reproduce as package

    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return EXPERIMENTS


def rows(comparisons: list[Comparison]) -> list[dict[str, Any]]:
    """The comparisons as JSON."""
    return [asdict(c) for c in comparisons]


def plain(value: Any) -> Any:
    """The value as JSON reads it back; arrays and tensors become lists, and what is not finite None."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return json.loads(json.dumps(value))
