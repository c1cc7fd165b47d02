"""Run a command in this process, and judge what it did with bad input."""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

from saved_runs import contents

from byov.cli import main

PATIENCE = 10
"""Seconds of its own work that a command may take to refuse its input; in all, twelve times that on a busy machine."""
ROOM = 6 << 30
"""Bytes that a command may ask for beyond what is in use: more would be taken from others."""


class Hang(BaseException):
    """The time is up; no Exception, so that nothing takes it for bad input."""


@dataclass(frozen=True)
class Case:
    """What is given to `byov`."""

    words: tuple[object, ...]
    names: tuple[object, ...]
    """Any of these tells the user what to mend."""
    harmless: bool = False
    """Whether damage at random may have left the input as good as it was."""


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str
    crash: str = ""
    """The end of a traceback."""


def call(*words: object, patience: int = 0) -> Result:
    """Run `byov WORDS…`: its status, what it printed, and the error if one came through."""
    out, err, crash = io.StringIO(), io.StringIO(), ""
    status: Any = 0
    argv = mock.patch.object(sys, "argv", ["byov", *map(str, words)])
    with argv, mock.patch.dict(os.environ, COLUMNS="200"), redirect_stdout(out), redirect_stderr(err):
        try:
            with patient(patience):
                main()
        except SystemExit as end:
            status = end.code or 0
        except (Exception, Hang) as error:
            status = 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            crash = f"{type(error).__name__}: {str(error)[:300]} ({Path(last.filename).name}:{last.lineno})"
    return Result(status, out.getvalue(), err.getvalue(), crash)


def verdict(case: Case, here: Path, world: Path) -> str:
    """Return what is wrong with the command's answer to the case in the folder `here`; empty if nothing is."""
    before, good = contents(here), stamps(world)
    with chdir(here), limited():
        found = call(*case.words, patience=PATIENCE)
    if found.crash:
        return found.crash
    if stamps(world) != good:
        return "something was changed outside its folder"
    if found.status == 0:
        return "" if case.harmless else f"accepted: {found.out[-200:]}"
    if found.status != 2:
        return f"status {found.status}: {found.err}"
    if contents(here) != before:
        changed = {name for name, _ in set(contents(here).items()) ^ set(before.items())}
        return f"refused, but wrote {sorted(changed)}"
    if found.err.startswith("Usage: "):  # by typer, of what is no number, or no option at all
        return ""
    if not found.err.startswith("byov: ") or found.err.count("\n") != 1:
        return f"not one sentence: {found.err}"
    if not any(str(name) in found.err for name in case.names):
        return f"none of {', '.join(map(str, case.names))} is named: {found.err}"
    return ""


def stamps(folder: Path) -> set[tuple[str, int, int]]:
    return {(str(path), (s := path.lstat()).st_size, s.st_mtime_ns) for path in folder.rglob("*")}


@contextmanager
def patient(seconds: int) -> Iterator[None]:
    """Raise `Hang` after so many seconds; 0: never."""

    def ring(_: int, frame: FrameType | None) -> None:
        raise Hang(f"still busy after {seconds} s")

    clocks = {signal.SIGALRM: (signal.ITIMER_REAL, 12 * seconds), signal.SIGPROF: (signal.ITIMER_PROF, seconds)}
    before = {number: signal.signal(number, ring) for number in clocks}
    for timer, limit in clocks.values():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for number, (timer, _) in clocks.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


@contextmanager
def limited() -> Iterator[None]:
    """Let no allocation take the machine's memory from others."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:  # no Linux
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
