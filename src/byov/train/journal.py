"""Log a run: JSON lines for reports and layer statistics, TensorBoard, and a progress bar."""

from __future__ import annotations

import json
import os
import threading
from contextlib import ExitStack, suppress
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from byov.files import naming_file
from byov.posterior import BayesianModule
from byov.posterior.layer_statistics import layer_statistics

_SHOWN = ("loss", "ssl", "kl", "sigma", "snr")
LAYER_RECORDS = 100
"""Number of layer records per run. Each costs a few passes over the weights: see benchmarks/layers.py."""
LEAST_INTERVAL = 4
"""Minimum steps between two records: after every step of a tiny network, they would take more than 1 % of the time."""
_START = b'{"step"'
"""The first bytes of every log."""


def layer_interval(total: int) -> int:
    """Return the number of steps between layer records."""
    return max(LEAST_INTERVAL, round(total / LAYER_RECORDS))


def layers_due(step: int, total: int) -> bool:
    """Check whether layers are recorded after `step` of `total` steps: at the start, every total/100 steps, at the end.

    This depends only on the two numbers, so that a resumed run has the same records as an uninterrupted one.
    """
    return step % layer_interval(total) == 0 or step == total


class Journal:
    """Write `log.jsonl`, `layers.jsonl`, `tensorboard/` in the run's folder and a progress bar, on the first rank only.

    A resumed run continues after the checkpoint's step: later entries are removed.
    """

    def __init__(
        self, run: Path, step: int, total: int, steps_per_epoch: int, active: bool, compiled: bool = False
    ) -> None:
        self.run, self.step, self.total = run, step, total
        self.steps_per_epoch, self.active, self.compiled = steps_per_epoch, active, compiled
        self.alarmed: set[str] = set()
        self.layer_file: BinaryIO | None = None
        self.open = ExitStack()

    def __enter__(self) -> Journal:
        if not self.active:
            return self
        self.run.mkdir(parents=True, exist_ok=True)
        logs = [self.run / name for name in ("log.jsonl", "layers.jsonl")]
        for path in logs:  # check both before truncating either
            _check(path)
        for path in logs:
            _cut(path, self.step)
        with ExitStack() as stack:
            stack.callback(setattr, threading, "excepthook", threading.excepthook)
            self.hook, threading.excepthook = threading.excepthook, self._of_board
            self.file = stack.enter_context((self.run / "log.jsonl").open("ab", buffering=0))
            with naming_file(self.run / "tensorboard"):
                self.board = SummaryWriter(str(self.run / "tensorboard"), purge_step=self.step + 1)
            stack.callback(self._close_board)
            self.console = Console(stderr=True)
            self.bar = stack.enter_context(self._bar())
            what = "compiling, for the first step …" if self.compiled else "the first step …"
            self.row = self.bar.add_task(what, total=self.total, completed=self.step, values="")
            self.open = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.open.close()

    def _close_board(self) -> None:
        with suppress(OSError):  # a full disk: writing the log, with the same data, would have raised
            self.board.close()

    def _bar(self) -> Progress:
        return Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
            TimeElapsedColumn(),
            TextColumn("· ETA"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )

    def advance(self, step: int) -> None:
        if self.active:
            self.bar.update(self.row, completed=step, description=self._epoch(step))

    def write(self, step: int, seconds: float, values: dict[str, float], speed: float = 0.0) -> None:
        """Write one report; `speed` is in images per second."""
        if not self.active:
            return
        line = {**self._at(step), "seconds": round(seconds, 3), "images_per_s": round(speed, 1), **values}
        _append(self.file, line)
        with naming_file(self.run / "tensorboard"):
            for name, value in values.items():
                self.board.add_scalar(name, value, step)
        # The sum of SSL loss and KL may rise in a healthy run.
        names = [name for name in _SHOWN if name in values and not (name == "loss" and "ssl" in values)]
        shown = " ".join(f"{name} {values[name]:.4g}" for name in names) + f" · {speed:,.0f} images/s"
        self.bar.update(self.row, completed=step, description=self._epoch(step), values=shown)

    def _epoch(self, step: int) -> str:
        """Return the epoch of a step as text, such as "epoch 3/10"."""
        return f"epoch {-(-step // self.steps_per_epoch)}/{-(-self.total // self.steps_per_epoch)}"

    def record_layers(self, step: int, model: nn.Module) -> None:
        """Write layer-wise σ and |μ|/σ (BYOV's Figures 3 and 6), if a record is due after this step.

        Each row has the numbers in the order of `LayerStatistics`. All ranks have the same weights, so only the first
        writes.
        """
        if not (self.active and isinstance(model, BayesianModule) and layers_due(step, self.total)):
            return
        if self.layer_file is None:  # a network without a posterior has no such file
            self.layer_file = self.open.enter_context((self.run / "layers.jsonl").open("ab", buffering=0))
        layers = {name: [_short(v) for v in row] for name, row in layer_statistics(model).items()}
        _append(self.layer_file, {**self._at(step), "layers": layers})

    def alarm(self, step: int, message: str, about: str = "") -> None:
        """Print and log a warning, only once per start of a run for each topic `about`."""
        if self.active and about not in self.alarmed:
            self.console.print(f"[bold yellow]warning:[/] {message}")
            _append(self.file, {"step": step, "alarm": message})
            self.alarmed.add(about)

    def _of_board(self, caught: threading.ExceptHookArgs) -> None:
        """Ignore write errors in TensorBoard's own thread: they are raised when the next value is added."""
        if not isinstance(caught.exc_value, OSError):
            self.hook(caught)

    def _at(self, step: int) -> dict[str, Any]:
        return {"step": step, "epoch": round(step / self.steps_per_epoch, 4)}


def _short(value: float | None) -> float | None:
    """Round to six digits; None for non-finite values, which JSON lacks: the weights may have diverged."""
    if value is None or not isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.6g}")


def _append(file: BinaryIO, entry: dict[str, Any]) -> None:
    """Write a line immediately."""
    line = json.dumps(entry).encode() + b"\n"
    with naming_file(Path(file.name)):
        written = file.write(line)
        while written < len(line):  # the disk is full, or nearly
            written += file.write(line[written:])


def _check(path: Path) -> None:
    """Raise if the file is not a byov log, which may be truncated and continued."""
    if path.exists():
        ours = path.is_file()  # reading a pipe may block forever
        if ours:
            with path.open("rb") as file:
                ours = _START.startswith(file.read(len(_START)))
        if not ours:
            raise FileExistsError(f"{path} is not the log of a run: choose another --run, or move that file away.")


def _cut(path: Path, step: int) -> None:
    """Remove the entries of a log after a step; at step 0, empty it.

    A last line that was only partly written is removed too. The file is truncated in place, which needs no disk space.
    """
    if not path.exists():
        return
    content = path.read_bytes()
    end = place = 0
    for line in content.splitlines(keepends=True) if step else ():
        place += len(line)
        if line.endswith(b"\n") and _step(line) <= step:
            end = place
    if end < len(content):
        os.truncate(path, end)


def _step(line: bytes) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):  # truncated, or not from byov
        return 1 << 62
