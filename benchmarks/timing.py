"""How time and memory are measured: interleaved repetitions, and a contender's peak in a process of its own."""

from __future__ import annotations

import fcntl
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

Step = Callable[[], object]


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def turn() -> Iterator[None]:
    """This process' turn to measure, where several take turns (`together.py`); else nothing."""
    folder = os.environ.get("BYOV_TURNS")
    if folder is None:
        yield
        return
    (Path(folder) / f"ready_{os.getpid()}").touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.2)
    with (Path(folder) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def interleaved(
    steps: Mapping[str, Step],
    repetitions: int,
    device: torch.device,
    burst: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of every contender's step, one step of each per round, or the mean of a `burst` of them.

    A disturbance of the machine then falls on all contenders alike. Each round starts with another contender, so that
    none is always the first one after a pause. On a GPU a burst is what training does: the host runs ahead.
    `time.process_time` as the clock leaves out what other programs take of a CPU.
    """
    names = list(steps)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with turn():
        for repetition in range(repetitions):
            shift = repetition % len(names)
            for name in names[shift:] + names[:shift]:
                synchronize(device)
                start = clock()
                for _ in range(burst):
                    steps[name]()
                synchronize(device)
                seconds[name].append((clock() - start) / burst)
    return seconds


@dataclass(frozen=True)
class Ratio:
    """The median over rounds of a/b, with its quartiles: paired, because both steps of a round met the same machine."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, a: list[float], b: list[float]) -> Ratio:
        paired = torch.tensor([x / y for x, y in zip(a, b, strict=True)], dtype=torch.float64)
        low, high = torch.quantile(paired, torch.tensor([0.25, 0.75], dtype=torch.float64)).tolist()
        return cls(median(paired.tolist()), low, high)


def peak_bytes(build: Callable[[], Step], steps: int, device: torch.device) -> int:
    """What building one contender and training it for a few steps adds to this process at its peak.

    CUDA: the allocator's own peak. CPU: the most pages that were ever resident, less those resident before `build`; so
    call it in a fresh process, after the imports. That counts what the C allocator keeps back, as a user's machine
    does.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    else:
        before = _resident("VmRSS")
    step = build()
    for _ in range(steps):
        step()
    synchronize(device)
    return (torch.cuda.max_memory_allocated(device) if device.type == "cuda" else _resident("VmHWM")) - before


def _resident(field: str) -> int:
    """VmRSS (now) or VmHWM (the peak) of this process in bytes.

    Not ru_maxrss where /proc exists: a process that another one started inherits that one's peak in it.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith(field))
        return 1024 * int(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
