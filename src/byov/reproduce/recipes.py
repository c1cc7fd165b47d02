"""The recipes of the experiments, and their runs, which are trained once, resumed if interrupted, and reused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from byov.device import choose_device
from byov.reproduce.experiment import Context, OutOfTime
from byov.runs import CHECKPOINT, read_header
from byov.ssl import pretrain
from byov.ssl.pretrain import Pretrain
from byov.train import supervised
from byov.train.config import flatten, load_config
from byov.train.run import RESUMABLE, difference
from byov.train.supervised import Supervised

T = TypeVar("T", Pretrain, Supervised)

PLACE = {"train.accelerator", "train.devices", *RESUMABLE}
"""Settings that say where a run was trained; runs that differ only in them are the same."""


def load_here(context: Context, kind: type[T], name: str, *changes: str) -> T:
    """Load a recipe of the repository with a context's seed, device and data folder, and its changes last."""
    place: list[str] = [f"train.accelerator={choose_device(context.device).type}", "train.devices=1"]
    place += [] if context.root is None else [f"data.root={context.root}"]
    return load_config(kind, name, [f"train.seed={context.seed}", *place, *changes, *context.changes])


def runs_folder(context: Context) -> Path:
    """Return the folder of the runs shared by all experiments of a paper."""
    return context.out.parent / "runs" / context.scale


def trained(context: Context, name: str, recipe: Pretrain | Supervised) -> Path:
    """Return the folder of a recipe's finished run, training it or resuming its training if necessary.

    Raises:
        OutOfTime: if the context's time is up before the run is finished.
        ValueError: if the folder holds a run of another recipe.
    """
    run = runs_folder(context) / f"{name}_seed{recipe.train.seed}"
    exists = (run / CHECKPOINT).exists()
    if exists:
        header = read_header(run)
        if changed := difference(recipe, header.config, PLACE):
            raise ValueError(f"{run} was trained with {changed}: remove it, or choose another folder for the results.")
        if header.finished:
            return run
    context.check_time()
    recipe = replace(recipe, train=replace(recipe.train, minutes=context.minutes_left))
    start: Any = pretrain.start if isinstance(recipe, Pretrain) else supervised.start
    if not start(recipe, run, exists):
        raise OutOfTime(f"{run} is not finished.")
    return run


def settings_of(run: Path) -> dict[str, Any]:
    """Return the recipe of a run by dotted key, and its "kind"."""
    header = read_header(run)
    return {**flatten(header.config), "kind": header.kind}
