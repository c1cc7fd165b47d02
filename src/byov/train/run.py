"""A run's folder: created once, written by one process, never overwritten, and resumed only with its own recipe."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from byov.data import FolderSet, ImageSet
from byov.data.config import DataSpec
from byov.train import Stopped, checkpoint
from byov.train.config import flatten, to_dict
from byov.train.fabric import Signals, explain_lost_process, make_fabric, print_errors, print_lines, raise_on_all
from byov.train.loop import Loop, RecipeTask
from byov.train.readme import write_readme
from byov.train.train_config import AUTO_SETTINGS, ON_CPU, ON_GPU, as_started, fit_to_data, fit_to_machine

RESUMABLE = {
    *("train.minutes", "train.save_minutes", "train.log_every", "train.workers", "train.cuda_graphs"),
    *("data.root", "data.download"),
}
"""Settings that may differ when a run is resumed, because they do not change the result."""

_COMMANDS = {"pretrain": "byov pretrain", "train": "byov train", "table": "byov train on a table"}


_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems without locks."""


def claim(run: Path, kind: str, recipe: Any, resume: bool) -> bool:
    """Return True if there is a checkpoint to resume; raise if starting or resuming would overwrite another run."""
    file = run / "checkpoint.safetensors"
    if not file.exists():
        above = next(path for path in (run, *run.parents, Path()) if path.exists())
        if not above.is_dir():
            raise FileExistsError(f"{above} is a file, and a run needs a folder.")
        return False
    if not resume:
        raise FileExistsError(f"{run} holds a run already: resume it with --resume, or choose another --run.")
    changed = difference(recipe, _about(checkpoint.peek(file), kind, run)["config"])
    if changed:
        raise ValueError(f"The run was started with {changed}.")
    return True


def _about(state: Any, kind: str, run: Path) -> dict[str, Any]:
    """Return a checkpoint's description of its run; raise if it is of another kind."""
    about = state.get("recipe") if isinstance(state, dict) else None
    if not isinstance(about, dict) or about.get("kind") != kind or not isinstance(about.get("config"), dict):
        other = _COMMANDS.get(str(about.get("kind"))) if isinstance(about, dict) else None
        raise ValueError(f"{run} is not a run of {_COMMANDS[kind]}" + (f", but of {other}." if other else "."))
    data, shape = about["config"].get("data"), about.get("shape")
    if isinstance(data, dict) and str(data.get("name")).startswith("folder:") and isinstance(shape, list) and shape[1:]:
        data["image_size"] = shape[1]  # older runs do not record it
    return about


def difference(recipe: Any, config: dict[str, Any], free: Collection[str] = RESUMABLE) -> str:
    """Describe the first setting, except `free` ones, in which a run's config differs from a recipe; "" if none.

    A setting missing in an older config had its default. Settings that the recipe leaves open are those of the run, and
    a GPU's compiled bf16 matches the values that `TrainConfig.on` gives it on a CPU.
    """
    before, now = flatten(to_dict(type(recipe)())) | flatten(config), flatten(to_dict(recipe))
    free = {*free, *(key for key, left_open in AUTO_SETTINGS.items() if now.get(key, ...) == left_open)}
    machine = ("train.compile", "train.precision")
    if {tuple(of.get(key) for key in machine) for of in (before, now)} == {ON_GPU, ON_CPU}:
        free |= {*machine}
    changed = (key for key in now if key not in free and now[key] != before.get(key))
    return next((f"{key} = {before.get(key)!r}, not {now[key]!r}" for key in changed), "")


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold the lock of a run's folder, created if needed; raise BlockingIOError if another process holds it.

    The kernel releases it when this process ends in any way. It is a POSIX lock (`lockf`), not a BSD lock (`flock`),
    which would be kept by the workers of a loader: they may survive a kill of their parent by seconds. It has no effect
    on Windows and on file systems without locks.
    """
    run.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(os.open(run / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise BlockingIOError(f"{run} is being written by another process: wait for it, or end it.") from None
            if error.errno not in _NO_LOCKS:
                raise
        yield


def execute(
    kind: str,
    recipe: Any,
    run: Path,
    resume: bool,
    task_of: Callable[[Any, Any, int, torch.device], RecipeTask],
) -> bool:
    """Run a recipe in a folder until its end or its time limit; return True if it reached the end.

    `task_of` creates the task from the recipe, its data, the number of processes and the device. The recipe is first
    fitted to the machine and the data. The task's note is printed after all checks, when training begins. With `resume`
    a run continues, or starts if there is none.

    Raises:
        Stopped: if a signal requested a stop; the current step is completed and a checkpoint saved.
    """
    if claim(run, kind, recipe, resume):  # before any slow work
        recipe = as_started(recipe, _about(checkpoint.peek(run / "checkpoint.safetensors"), kind, run)["config"])
    train, on_machine = fit_to_machine(recipe.train)
    recipe = replace(recipe, train=train)
    alone = not (dist.is_available() and dist.is_initialized())
    with Signals() as signals, ExitStack() as stack:
        fabric = make_fabric(recipe.train)
        stack.enter_context(explain_lost_process(fabric))
        with raise_on_all(fabric):
            torch.manual_seed(recipe.train.seed)  # for the initial weights, the same on every rank
            parts = fabric.world_size * train.accumulate
            recipe, data, on_data = fit_to_data(recipe, recipe.data.load(), parts)
            task = task_of(recipe, data, fabric.world_size, fabric.device)
        loop = Loop(fabric, task, recipe.train, run, {**description(kind, recipe, data), **task.about()})
        with raise_on_all(fabric):
            if fabric.is_global_zero:
                stack.enter_context(locked(run))
                checkpoint.clear(loop.path)
        with raise_on_all(fabric):
            # Again, because another process may have held the lock until now.
            warning = loop.resume() if claim(run, kind, recipe, resume) else ""
        if fabric.is_global_zero:
            print_lines(warning and f"warning: {warning}", on_machine, on_data, task.note())
        with print_errors(fabric):
            finished = loop.fit(signals)
        left_out = loop.batches.left_out()
        if fabric.is_global_zero:
            print_lines(left_out)
        if loop.signal:
            raise Stopped(summary(loop, finished))
        if fabric.is_global_zero:
            if finished:
                write_readme(run, kind, recipe, summary(loop, finished).removeprefix(f"{run}: ").capitalize())
            print_lines(summary(loop, finished))
        if alone and dist.is_available() and dist.is_initialized():
            # Together: a process that ends while another is still connected to it may make that one abort.
            dist.barrier()
            dist.destroy_process_group()
    return finished


def description(kind: str, recipe: Any, data: ImageSet | FolderSet) -> dict[str, Any]:
    """Return the description of its run that every checkpoint contains; `runs.header` reads it."""
    return {
        "kind": kind,
        "config": to_dict(recipe),
        "data": {"digest": data.digest, "images": len(data), "mean": list(data.mean), "std": list(data.std)},
        "shape": [data.channels, data.image_size],
    }


def reopen(run: Path, kind: str) -> tuple[dict[str, Any], DataSpec]:
    """Read the checkpoint of a run of this kind; return it and the properties of its data."""
    state = checkpoint.load(run / "checkpoint.safetensors" if run.is_dir() else run)
    about = _about(state, kind, run)
    try:
        (channels, size), data = about["shape"], about["data"]
        return state, DataSpec(channels, size, tuple(data["mean"]), tuple(data["std"]), data["images"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{run} does not describe its data.") from None


def summary(loop: Loop, finished: bool) -> str:
    """Return one line on how a run ended."""
    speed = loop.step * loop.config.batch_size / max(loop.seconds, 1e-9)
    why = signal.Signals(loop.signal).name if loop.signal else "its time limit"
    where = f"step {loop.step} of {loop.total}; continue with --resume"
    stopped = f"stopped {'by' if loop.signal else 'at'} {why} ({where})"
    unit = getattr(loop.task.data, "unit", "images")
    return f"{loop.run}: {'finished' if finished else stopped}, {loop.seconds:.0f} s, {speed:,.0f} {unit}/s"
