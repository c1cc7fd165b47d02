"""Reproducing one table or figure of a paper: its name, its function, and the folder of its result."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from operator import eq
from pathlib import Path
from pkgutil import iter_modules
from statistics import stdev
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, get_args

from byov.evaluation.results import command_line, plain_json
from byov.files import check_out, read_json, write_json
from byov.runs import read_header

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KIND = "byov reproduce"

Scale = Literal["quick", "full"]
"""`quick` takes minutes on two CPU cores (digits, small tables); `full` is for a GPU (CIFAR, all splits)."""
Same = Callable[[Any, Any], bool]
"""Returns whether a result made under one protocol is valid for another."""


class OutOfTime(Exception):
    """Raised when an experiment is out of time; finished parts are kept, and the same command continues it."""


@dataclass(frozen=True)
class Comparison:
    """One line of `paper | ours | verdict`."""

    quantity: str
    ours: float
    paper: float | None = None
    """None if the paper has no number."""
    error: float | None = None
    """The standard error of ours, if there are several seeds or splits."""
    verdict: str = ""


@dataclass(frozen=True)
class Outcome:
    """The result of an experiment: numbers, comparisons with the paper, and a figure."""

    data: dict[str, Any]
    """The numbers behind the figure, and the protocol: JSON, the same for the same seed."""
    comparisons: list[Comparison] = field(default_factory=list)
    figure: Figure | None = None
    note: str = ""


@dataclass(frozen=True)
class Context:
    """Settings of an experiment, and the folder with its finished parts."""

    out: Path
    scale: Scale = "quick"
    seed: int = 0
    device: str = "cpu"
    root: str | Path | None = None
    """The folder of the datasets; by default that of `byov.data`."""
    runs: tuple[Path, ...] = ()
    """The user's runs, used instead of training."""
    changes: tuple[str, ...] = ()
    """Changes to every recipe that is trained, such as "train.epochs=5"."""
    trust: bool = False
    """Allow importing the code that the recipes of those runs name."""
    deadline: float | None = None
    """The `time.monotonic()` after which no new work is started."""
    partial: bool = False
    """Show only the methods and seeds already read, and train nothing."""

    @property
    def minutes_left(self) -> float | None:
        """Return the minutes until the deadline, if there is one."""
        return None if self.deadline is None else (self.deadline - monotonic()) / 60

    def check_time(self) -> None:
        """Raise `OutOfTime` after the deadline; call it before any long work."""
        if self.minutes_left is not None and self.minutes_left <= 0:
            raise OutOfTime("The time is up.")

    def find(self, name: str, protocol: dict[str, Any], same: Same = eq) -> dict[str, Any] | None:
        """Return what `kept` has stored under a name and protocol, or None."""
        path = self.out / "parts" / f"{name}.json"
        if not path.is_file():
            return None
        before = read_json(path)
        if not isinstance(before, dict) or "result" not in before:
            raise ValueError(f"{path} is damaged: remove it to measure its part again.")
        return before["result"] if same(before.get("protocol"), self._whole_protocol(protocol)) else None

    def kept(
        self, name: str, protocol: dict[str, Any], make: Callable[[], dict[str, Any]], same: Same = eq
    ) -> dict[str, Any]:
        """Return `make()`, or its stored result if the protocol is the `same`, so interrupted experiments continue."""
        before = self.find(name, protocol, same)
        if before is not None:
            return before
        self.check_time()
        result = plain_json(make())
        write_json(self.out / "parts" / f"{name}.json", {"protocol": self._whole_protocol(protocol), "result": result})
        return result

    def _whole_protocol(self, protocol: dict[str, Any]) -> dict[str, Any]:
        return plain_json({"seed": self.seed, "scale": self.scale, **protocol})

    def protocol(self) -> dict[str, Any]:
        """Return the common settings that the numbers of an experiment depend on."""
        import torch

        import byov

        place = torch.cuda.get_device_name(self.device) if self.device.startswith("cuda") else self.device
        return {
            "scale": self.scale,
            "seed": self.seed,
            "device": place,
            "runs": [str(run) for run in self.runs],
            **({"changes": list(self.changes)} if self.changes else {}),
            "versions": {"byov": byov.__version__, "torch": str(torch.__version__)},
        }


def contexts(
    names: Sequence[str],
    out: Path,
    scale: str | None = None,
    seed: int = 0,
    device: str = "cpu",
    root: Path | None = None,
    runs: Sequence[Path] = (),
    minutes: float | None = None,
    trust: bool = False,
) -> dict[str, Context]:
    """Return the context of each experiment, in its own folder; the deadline of all is `minutes` from now.

    The scale defaults to full on a GPU, otherwise quick.
    """
    size = ("full" if device.startswith("cuda") else "quick") if scale is None else scale
    if size not in get_args(Scale):
        raise ValueError(f"The scale must be quick or full, not {size!r}.")
    if minutes is not None and not minutes >= 0:
        raise ValueError(f"--minutes must be at least 0, not {minutes}.")
    for path in runs:
        read_header(path)
    deadline = None if minutes is None else monotonic() + 60 * minutes
    common = Context(out, size, seed, device, root, tuple(runs), deadline=deadline, trust=trust)  # type: ignore[arg-type]
    return {name: replace(common, out=out / name) for name in names}


def standard_error(values: list[float]) -> float | None:
    """Return the standard error of a mean; None for a single value."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


# The registry of experiments


@dataclass(frozen=True)
class Experiment:
    """A table or figure by name (`byov/figure4`, `patching/table12`)."""

    name: str
    title: str
    run: Callable[[Context], Outcome]


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(name: str, title: str) -> Callable[[Callable[[Context], Outcome]], Callable[[Context], Outcome]]:
    """Register a function as an experiment."""

    def register(run: Callable[[Context], Outcome]) -> Callable[[Context], Outcome]:
        EXPERIMENTS[name] = Experiment(name, title, run)
        return run

    return register


def discover() -> dict[str, Experiment]:
    """Return all experiments, by importing every module of this package."""
    import byov.reproduce as package

    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return EXPERIMENTS


# The folder of an experiment: result.json, figure.png and figure.svg


def finished(folder: Path) -> dict[str, Any] | None:
    """Return the result in a folder, or None."""
    path = folder / "result.json"
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file, but an experiment needs a folder: choose another --out.")
    if not path.exists():
        return None
    try:
        content = read_json(path)
        if content["kind"] != KIND:
            raise ValueError(content["kind"])
    except (ValueError, KeyError, TypeError):
        raise FileExistsError(f"{path} is not a file of `{KIND}`: choose another --out.") from None
    return content


def check(experiment: Experiment, context: Context) -> None:
    """Raise if the folder holds a result with other settings, or cannot be created."""
    before = finished(context.out)
    if before is None:
        check_out(context.out / "result.json", force=True)
        return
    now = context.protocol()
    for key in ("scale", "seed", "runs"):
        if before["protocol"].get(key) != now[key]:
            given = f"{key} = {before['protocol'].get(key)}, not {now[key]}"
            raise FileExistsError(
                f"{context.out} holds {experiment.name} with {given}: choose another --out, or add --force."
            )


def run(experiment: Experiment, context: Context) -> dict[str, Any]:
    """Run an experiment and write its folder, the result last, so that it exists only if everything does."""
    import torch

    from byov.report.drawing import save

    context.check_time()
    start = monotonic()
    torch.manual_seed(context.seed)  # independent of what ran before in this process
    outcome = experiment.run(context)
    content = plain_json(
        {
            "kind": KIND,
            "name": experiment.name,
            "title": experiment.title,
            "protocol": context.protocol(),
            "data": outcome.data,
            "comparisons": [asdict(row) for row in outcome.comparisons],
            "note": outcome.note,
        }
    )
    if outcome.figure is not None:
        save(outcome.figure, context.out / "figure", bbox_inches="tight")
    # The duration goes to another file, so that the same seed gives the same result file.
    about = {
        "command": command_line(),
        "seconds": round(monotonic() - start, 1),
        "machine": platform.machine(),
    }
    write_json(context.out / "environment.json", about)
    write_json(context.out / "result.json", content)
    return content
