"""Two fresh processes that meet over a file, for tests of what is computed together."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NoReturn

import torch
import torch.distributed as dist

RANKS = 2


def in_two_processes(file: str, folder: Path, meanwhile: Callable[[], None] = lambda: None) -> list[Any]:
    """What each process found: `file` is the test's own, which ends with `take_part`."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths).rstrip(os.pathsep)}
    words = [sys.executable, file]
    processes = [subprocess.Popen([*words, str(rank), str(folder)], env=env) for rank in range(RANKS)]
    try:
        meanwhile()
        assert [process.wait(timeout=1800) for process in processes] == [0] * RANKS
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


def take_part(work: Callable[[int], Any]) -> None:
    """Be the process whose rank is on the command line, and leave what `work` finds."""
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    leave(work(rank), rank, folder)


def leave(found: Any, rank: int, folder: Path) -> NoReturn:
    """Save what was found, wait until all have, and end at once.

    Gloo's threads sometimes abort a process that is torn down ("terminate called without an active exception"), when
    everything has been computed. So nothing is torn down here.
    """
    torch.save(found, folder / f"{rank}.pt")
    deadline = monotonic() + 60
    while not all((folder / f"{other}.pt").exists() for other in range(RANKS)) and monotonic() < deadline:
        sleep(0.02)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
