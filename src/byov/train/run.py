"""A run's folder: made once, never overwritten, taken up again only with the recipe it was started with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from byov.train import checkpoint
from byov.train.config import to_dict
from byov.train.loop import Loop

FREE = {"train.minutes", "train.save_minutes", "train.log_every", "train.workers", "data.root", "data.download"}
"""What may differ when a run is taken up again: it changes nothing of the result."""


def claim(run: Path, recipe: Any, resume: bool) -> bool:
    """Whether there is a checkpoint to go on from; raises where going on, or starting, would lose something."""
    exists = (run / "checkpoint.safetensors").exists()
    if exists and not resume:
        raise FileExistsError(f"{run} holds a run already: go on with --resume, or choose another --run.")
    if resume and not exists:
        raise FileNotFoundError(f"There is no checkpoint in {run} to resume from.")
    if run.exists() and not run.is_dir():
        raise FileExistsError(f"{run} is a file, and a run needs a folder.")
    if exists:
        before, now = _flat(checkpoint.peek(run / "checkpoint.safetensors")["recipe"]["config"]), _flat(to_dict(recipe))
        changed = [key for key in now if key not in FREE and now[key] != before.get(key)]
        if changed:
            key = changed[0]
            raise ValueError(f"The run was started with {key} = {before.get(key)!r}, not {now[key]!r}.")
    return exists


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def summary(loop: Loop, finished: bool) -> str:
    """One line on how a run ended."""
    speed = loop.step * loop.config.batch / max(loop.seconds, 1e-9)
    stopped = f"stopped at its time limit (step {loop.step} of {loop.total}; --resume goes on)"
    return f"{loop.run}: {'finished' if finished else stopped}, {loop.seconds:.0f} s, {speed:,.0f} images/s"
