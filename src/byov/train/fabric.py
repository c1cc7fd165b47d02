"""Devices and processes, by Lightning Fabric: shared errors, and signals that request a planned stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from lightning.fabric.utilities.exceptions import MisconfigurationException
from rich.console import Console

from byov.data.printable import reason
from byov.train.train_config import TrainConfig


def make_fabric(config: TrainConfig) -> Fabric:
    """Launch Fabric for this configuration: one device, or DDP over several, including under torchrun and Slurm."""
    config = config.on(config.sees_gpu)
    launched = "LOCAL_RANK" in os.environ
    processes = int(os.environ.get("WORLD_SIZE", "1")) // config.nodes if launched else None  # on this node
    devices: Any = processes or config.devices
    if processes is None and config.devices == "auto" and not torch.cuda.is_available():
        devices = 1
    several = (processes or 1) > 1 or config.nodes > 1 or (isinstance(devices, int) and devices > 1)
    if devices == "auto" and torch.cuda.device_count() > 1:
        several = True
    # The EMA's buffers are large and equal by construction, so they are not broadcast at every step.
    strategy: Any = DDPStrategy(broadcast_buffers=False) if several else "auto"
    if config.accelerator in ("cuda", "gpu") and not torch.cuda.is_available():
        raise ValueError(f"train.accelerator={config.accelerator}, but torch sees no GPU here: leave it at auto.")
    if processes is None:
        _check_counts(config)
    try:
        fabric = Fabric(
            accelerator=config.accelerator,
            devices=devices,
            num_nodes=config.nodes,
            strategy=strategy,
            precision=config.precision,  # type: ignore[arg-type]  # "auto" is resolved here
        )
    except (MisconfigurationException, ImportError, RuntimeError, TypeError, ValueError) as error:
        wanted = f"train.accelerator={config.accelerator} with train.devices={config.devices}"
        raise ValueError(f"{wanted} cannot be used here: {reason(error)}") from error
    # Keep inputs unchanged: Fabric would round β, and the uniforms that place the crops, to bfloat16's three digits.
    fabric.strategy.precision.convert_input = lambda data: data  # type: ignore[method-assign]
    fabric.launch()
    if fabric.device.type == "cuda" and config.precision == "bf16-mixed":
        # What remains in float32 (the resampling of views) may have rounding errors of up to half a grey level.
        torch.set_float32_matmul_precision("high")
    return fabric


def _check_counts(config: TrainConfig) -> None:
    """Raise if there are more processes than are useful, or several nodes but no launcher."""
    on_cpu = config.accelerator == "cpu" or not (torch.cuda.is_available() or torch.backends.mps.is_available())
    most = max(8, 2 * (os.cpu_count() or 1))
    if on_cpu and isinstance(config.devices, int) and config.devices > most:
        raise ValueError(f"train.devices={config.devices} is too many processes for this CPU: at most {most}.")
    if config.nodes > 1 and not {"MASTER_ADDR", "SLURM_NTASKS"} & set(os.environ):
        raise ValueError(f"train.nodes={config.nodes} is for runs started on each node by torchrun or srun.")


@contextmanager
def raise_on_all(fabric: Fabric) -> Iterator[None]:
    """Raise an error of one process on all of them, so that none waits for it and the first can report it."""
    if fabric.world_size == 1:
        yield
        return
    own = None
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        own = error
    said: list[Any] = [None] * fabric.world_size
    dist.all_gather_object(said, own and (str(own) or type(own).__name__))
    if own is not None and fabric.is_global_zero:
        raise own
    if sentence := next((each for each in said if each), None):
        raise ValueError(sentence) from own


@contextmanager
def print_errors(fabric: Fabric) -> Iterator[None]:
    """Print errors of processes other than the first, which would only see that they ended."""
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        if not fabric.is_global_zero:
            print_lines(f"byov, process {fabric.global_rank}: {error}")
        raise


def print_lines(*lines: str) -> None:
    """Print non-empty lines to stderr verbatim: a path may look like rich markup."""
    for line in filter(None, lines):
        Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def explain_lost_process(fabric: Fabric) -> Iterator[None]:
    """Replace a backend's error by a clear message when another process has ended."""
    try:
        yield
    except RuntimeError as error:
        backend = isinstance(error, dist.DistError) or any(name in str(error).lower() for name in ("gloo", "nccl"))
        if fabric.world_size == 1 or not backend:
            raise
        raise ConnectionError(
            "Another process of this run has ended, so this one ends too; the last checkpoint is kept, and --resume"
            " continues from it."
        ) from error


STOPS = ("SIGTERM", "SIGINT", "SIGUSR1")
"""Signals by which a scheduler or Ctrl-C requests a stop; Slurm sends the one given by `--signal`."""


class Signals:
    """Record these signals instead of being killed by them, in the main thread only.

    `caught` is the number of the first signal, or 0. A SIGINT after another signal ends the program at once.
    """

    def __init__(self) -> None:
        self.caught = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread():  # only it may set signal handlers
            for number in (getattr(signal, name) for name in STOPS if hasattr(signal, name)):  # Windows lacks SIGUSR1
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a forked loader worker: its parent decides, and may end it
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        if self.caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.caught = self.caught or number
