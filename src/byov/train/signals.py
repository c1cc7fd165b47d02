"""Planned stops: a signal is noted while a run trains, which then ends after the step with a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

NAMES = ("SIGTERM", "SIGINT", "SIGUSR1")
"""What a scheduler, or Ctrl-C, asks for a stop with; Slurm's warning is what `--signal` says."""


class Signals:
    """Note these signals instead of dying of them, in the main thread only; `caught` is the first one's number, or 0.

    A SIGINT after another signal ends the program at once.
    """

    def __init__(self) -> None:
        self.caught = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread():  # Python allows no other to set a handler
            for number in (getattr(signal, name) for name in NAMES if hasattr(signal, name)):  # Windows lacks one
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a loader's worker, forked meanwhile: its parent decides, and may end it
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        if self.caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.caught = self.caught or number
