"""Console output of the commands: plain lines, readable tables, and a progress bar on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from byov.ssl.linear_evaluation import Advance

WIDTH = 100
"""The least width of output that is not printed to a terminal."""


def show(*things: Any, width: int = WIDTH) -> None:
    """Print tables, and lines of text verbatim: text that looks like rich markup may be part of a path."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(width, console.width))
    for thing in things:
        if isinstance(thing, str):
            console.print(thing, markup=False, highlight=False, soft_wrap=True)
        else:
            console.print(thing)


def first_process() -> bool:
    """Return whether this is the first process of a run, the only one that prints."""
    names = (
        ("RANK",) if "RANK" in os.environ else ("SLURM_PROCID", "LOCAL_RANK")
    )  # set by torchrun; by Slurm and Fabric
    return all(os.environ.get(name, "0") == "0" for name in names)


@contextmanager
def progress() -> Iterator[Advance]:
    """Show a progress bar on stderr if it is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)


def announce(name: str, place: int, of: int, done: int, seconds: float) -> None:
    """Announce the next of several items on a terminal, with the time left; each item has its own progress bars."""
    if of > 1 and sys.stderr.isatty():
        left = f", about {seconds / done * (of - place) / 60:.0f} min left" if done else ""
        print(f"{place + 1} of {of}: {name}{left}", file=sys.stderr)
