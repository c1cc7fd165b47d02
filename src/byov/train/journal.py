"""What a run writes down: one JSON line per report and per look at its layers, TensorBoard, and a progress bar."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch.utils.tensorboard import SummaryWriter

_SHOWN = ("loss", "kl", "sigma", "snr")


class Journal:
    """`log.jsonl`, `layers.jsonl` and `tensorboard/` in the run's folder, and a bar; silent on all ranks but the first.

    A run that is taken up again goes on after the checkpoint's step: what was written beyond it is taken out.
    """

    def __init__(self, run: Path, step: int, total: int, steps_per_epoch: int, active: bool) -> None:
        self.path, self.step, self.total, self.steps_per_epoch, self.active = (
            run / "log.jsonl",
            step,
            total,
            steps_per_epoch,
            active,
        )
        self.alarmed: set[str] = set()
        self.layer_file: TextIO | None = None

    def __enter__(self) -> Journal:
        if not self.active:
            return self
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _cut(self.path, self.step)
        _cut(self.path.with_name("layers.jsonl"), self.step)
        self.file = self.path.open("a", buffering=1)
        self.board = SummaryWriter(str(self.path.parent / "tensorboard"), purge_step=self.step + 1)
        self.console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        self.bar.start()
        self.row = self.bar.add_task("training", total=self.total, completed=self.step, values="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.active:
            self.bar.stop()
            self.file.close()
            if self.layer_file is not None:
                self.layer_file.close()
            self.board.close()

    def advance(self, step: int) -> None:
        if self.active:
            self.bar.update(self.row, completed=step)

    def write(self, step: int, seconds: float, values: dict[str, float], speed: float = 0.0) -> None:
        """One report; `speed` is in images per second."""
        if not self.active:
            return
        epoch = step / self.steps_per_epoch
        line = {
            "step": step,
            "epoch": round(epoch, 4),
            "seconds": round(seconds, 3),
            "images_per_s": round(speed, 1),
            **values,
        }
        self.file.write(json.dumps(line) + "\n")
        for name, value in values.items():
            self.board.add_scalar(name, value, step)
        shown = " ".join(f"{name} {values[name]:.4g}" for name in _SHOWN if name in values)
        self.bar.update(self.row, completed=step, values=f"{shown} · {speed:,.0f} img/s")

    def layers(self, step: int, values: dict[str, list[float | None]]) -> None:
        """One record of what each layer's posterior looks like, its numbers in the order of `LayerStatistics`."""
        if not self.active:
            return
        if self.layer_file is None:  # a network without a posterior has no such file
            self.layer_file = self.path.with_name("layers.jsonl").open("a", buffering=1)
        line = {"step": step, "epoch": round(step / self.steps_per_epoch, 4), "layers": values}
        self.layer_file.write(json.dumps(line) + "\n")

    def alarm(self, step: int, message: str, about: str = "") -> None:
        """A warning that must be seen, once each time a run is started, for each thing that it is about."""
        if self.active and about not in self.alarmed:
            self.console.print(f"[bold yellow]warning:[/] {message}")
            self.file.write(json.dumps({"step": step, "alarm": message}) + "\n")
            self.alarmed.add(about)


def _cut(path: Path, step: int) -> None:
    """Leave what was written up to a step; a run that starts anew starts with nothing."""
    if path.exists():
        lines = [line for line in path.read_text().splitlines() if step and _step(line) <= step]
        path.write_text("".join(f"{line}\n" for line in lines))


def _step(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # a line cut short by a kill
        return 1 << 62
