"""What commands print: plain lines, tables wide enough to read, and a progress bar where there is a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

WIDTH = 100
"""The least width of what is not printed to a terminal."""

Advance = Callable[[str, int, int], Any]
"""Shows how far a piece of work is: its name, the steps done, and all of them."""


def show(*things: Any, width: int = WIDTH) -> None:
    """Print tables, and lines of text word for word: what looks like rich's markup may be part of a path."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(width, console.width))
    for thing in things:
        if isinstance(thing, str):
            console.print(thing, markup=False, highlight=False, soft_wrap=True)
        else:
            console.print(thing)


def first_process() -> bool:
    """Tell if this is the first of the processes of a run, which speaks for all, or the only one."""
    names = ("RANK",) if "RANK" in os.environ else ("SLURM_PROCID", "LOCAL_RANK")  # by torchrun; Slurm, Fabric
    return all(os.environ.get(name, "0") == "0" for name in names)


@contextmanager
def progress() -> Iterator[Advance]:
    """Show a bar on stderr while work is done, where stderr is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)


def announce(name: str, place: int, of: int, done: int, seconds: float) -> None:
    """Say on a terminal which of several comes, and how long the rest may take; each has bars of its own to train."""
    if of > 1 and sys.stderr.isatty():
        left = f", about {seconds / done * (of - place) / 60:.0f} min left" if done else ""
        print(f"{place + 1} of {of}: {name}{left}", file=sys.stderr)
