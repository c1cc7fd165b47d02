"""A run's folder: made once, never overwritten, taken up again only with the recipe it was started with."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from rich.console import Console

from byov.data import FolderSet, ImageSet
from byov.data.config import Like
from byov.train import checkpoint
from byov.train.config import flatten, to_dict
from byov.train.loop import Loop, Task, make_fabric

FREE = {
    *("train.minutes", "train.save_minutes", "train.log_every", "train.workers", "train.cuda_graphs"),
    *("data.root", "data.download"),
}
"""What may differ when a run is taken up again: it changes nothing of the result."""


def claim(run: Path, recipe: Any, resume: bool) -> bool:
    """Return True if there is a checkpoint to resume from; raise where resuming, or starting, would lose something."""
    exists = (run / "checkpoint.safetensors").exists()
    if exists and not resume:
        raise FileExistsError(f"{run} holds a run already: go on with --resume, or choose another --run.")
    if resume and not exists:
        raise FileNotFoundError(f"There is no checkpoint in {run} to resume from.")
    above = next(path for path in (run, *run.parents, Path()) if path.exists())
    if not above.is_dir():
        raise FileExistsError(f"{above} is a file, and a run needs a folder.")
    if exists:
        changed = difference(recipe, checkpoint.peek(run / "checkpoint.safetensors")["recipe"]["config"])
        if changed:
            raise ValueError(f"The run was started with {changed}.")
    return exists


def difference(recipe: Any, config: dict[str, Any], free: Collection[str] = FREE) -> str:
    """Name the first setting, but for the `free` ones, in which a run's config differs from a recipe; "" if none.

    A setting that the config lacks, since it is older, had its default.
    """
    before, now = flatten(to_dict(type(recipe)())) | flatten(config), flatten(to_dict(recipe))
    changed = (key for key in now if key not in free and now[key] != before.get(key))
    return next((f"{key} = {before.get(key)!r}, not {now[key]!r}" for key in changed), "")


def execute(
    kind: str,
    recipe: Any,
    run: Path,
    resume: bool,
    make: Callable[[ImageSet | FolderSet, Fabric], tuple[Task, dict[str, Any]]],
    note: str = "",
) -> bool:
    """Run a recipe in a folder, to its end or its time limit; True if the end was reached.

    `make` gives the task for the data, and what the checkpoint should say beyond the recipe and the data. A `note` is
    printed when nothing was found to be wrong and training begins.
    """
    from_checkpoint = claim(run, recipe, resume)
    alone = not (dist.is_available() and dist.is_initialized())
    fabric = make_fabric(recipe.train)
    torch.manual_seed(recipe.train.seed)  # the weights' start; every rank the same
    data = recipe.data.load()
    task, more = make(data, fabric)
    about = {
        "kind": kind,
        "config": to_dict(recipe),
        "data": {"digest": data.digest, "images": len(data), "mean": list(data.mean), "std": list(data.std)},
        "shape": [data.channels, data.image_size],
        **more,
    }
    loop = Loop(fabric, task, recipe.train, run, about)
    if from_checkpoint:
        loop.resume()
    if note and fabric.is_global_zero:
        Console(stderr=True).print(note, markup=False, highlight=False)
    finished = loop.fit()
    left_out = loop.batches.left_out()
    if fabric.is_global_zero:
        told = "\n".join(filter(None, (left_out, summary(loop, finished))))
        Console(stderr=True).print(told, markup=False, highlight=False)  # a path may hold brackets
    if alone and dist.is_available() and dist.is_initialized():
        # Together: a process that ends while another still holds a connection to it makes that one abort, at times.
        dist.barrier()
        dist.destroy_process_group()
    return finished


def reopen(run: Path, kind: str) -> tuple[dict[str, Any], Like]:
    """Read the checkpoint of a run of that kind; return it, and what its images are like."""
    state = checkpoint.load(run / "checkpoint.safetensors" if run.is_dir() else run)
    about = state.get("recipe") if isinstance(state, dict) else None
    if not isinstance(about, dict) or about.get("kind") != kind:
        raise ValueError(f"{run} is not a run of byov {kind}.")
    (channels, size), data = about["shape"], about["data"]
    return state, Like(channels, size, tuple(data["mean"]), tuple(data["std"]), data["images"])


def summary(loop: Loop, finished: bool) -> str:
    """Describe in one line how a run ended."""
    speed = loop.step * loop.config.batch / max(loop.seconds, 1e-9)
    stopped = f"stopped at its time limit (step {loop.step} of {loop.total}; --resume goes on)"
    unit = getattr(loop.task.data, "unit", "images")
    return f"{loop.run}: {'finished' if finished else stopped}, {loop.seconds:.0f} s, {speed:,.0f} {unit}/s"
