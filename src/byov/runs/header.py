"""Read a checkpoint's description of its run, without its tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from byov.data.printable import reason
from byov.files import REAL, mismatch, whole
from byov.train import checkpoint
from byov.train.config import flatten

CHECKPOINT = "checkpoint.safetensors"
ABOUT = {
    "config": {"data": {"name": str, "root?": str}, "model": {}, "posterior": {"family": str}, "train": {"seed": int}},
    "data": {"digest": str, "images": int, "mean": [REAL], "std": [REAL]},
    "shape": [int],
    "class_names?": [str],
}
"""The pattern of the description in every run's checkpoint."""

T = TypeVar("T")


@dataclass(frozen=True)
class Header:
    """A run's checkpoint, its recipe and how far it got."""

    file: Path
    about: dict[str, Any]
    """Kind, config, data and shape, as written by training."""
    step: int
    total: int

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def kind(self) -> str:
        """Return "pretrain", "train" or "table"."""
        return self.about["kind"]

    @property
    def config(self) -> dict[str, Any]:
        """Return the recipe as nested dictionaries."""
        return self.about["config"]

    @property
    def finished(self) -> bool:
        return self.step >= self.total

    def trusted(self, trust: bool) -> Header:
        """Return the header; without `trust`, raise if the recipe names code to import, which may be malicious."""
        for key, value in flatten(self.config).items():
            if isinstance(value, str) and value.startswith("python:") and not trust:
                named = f"{self.file} names code to import, {key} = {value}"
                raise ValueError(f"{named}: add --trust (in Python trust=True) if you know whose it is.")
        return self

    def restored(self, restore: Callable[[Path, torch.device | str], T], device: torch.device | str) -> T:
        """Call a kind's `restore` on the checkpoint; errors name the file."""
        try:
            return restore(self.file, device)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
            if str(self.file) in str(error):
                raise
            said = reason(error).rstrip(".")
            raise ValueError(f"{self.file} cannot be opened: {said}.") from error

    def records(self, name: str) -> list[dict[str, Any]]:
        """Read the objects of a file in the run's folder; see `read_lines`."""
        return read_lines(self.folder / name)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a JSON Lines file, none if it is missing; skip incomplete lines, as left by a killed process.

    Non-finite numbers become None, as in the journal.
    """
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []:
        try:
            item = json.loads(line, parse_int=_finite, parse_float=_finite, parse_constant=_finite)
        except (ValueError, RecursionError):
            continue
        if isinstance(item, dict):
            found.append(item)
    return found


def _finite(text: str) -> float | None:
    value = whole(text) if text.lstrip("-").isdecimal() else float(text)
    return value if math.isfinite(value) else None


def checkpoint_of(path: str | Path) -> Path:
    """Return the checkpoint of a run, given its folder or its checkpoint."""
    path = Path(path).expanduser()
    return path / CHECKPOINT if path.is_dir() else path


def read_header(path: str | Path, kinds: Sequence[str] = ("pretrain", "train")) -> Header:
    """Read the header of a run, given its folder or its checkpoint; raise if its kind is not among `kinds`."""
    file = checkpoint_of(path)
    if not file.is_file():
        raise ValueError(f"There is no run at {path}: name a run's folder or its checkpoint.")
    state = _peek(file)
    about = state["recipe"]
    if about.get("kind") not in kinds:
        raise ValueError(f"{path} is not a run of byov {' or byov '.join(kinds)}: its kind is {about.get('kind')!r}.")
    wrong = mismatch(about, ABOUT) or mismatch(state, {"step?": int, "total?": int}) or _wrong_moments(about)
    if wrong:
        raise ValueError(f"{file} is damaged: in its header, {wrong}.")
    return Header(file, about, state.get("step") or 0, state.get("total") or 0)


def _wrong_moments(about: dict[str, Any]) -> str:
    """Describe what is wrong with the shape or the moments of the images, or return ""."""
    shape, mean, std = about["shape"], about["data"]["mean"], about["data"]["std"]
    if len(shape) != 2:
        return "shape does not have two numbers"
    if about["kind"] == "table":
        return ""
    if not len(mean) == len(std) == shape[0]:
        return f"mean and std do not have {shape[0]} channels"
    return "" if all(map(math.isfinite, (*mean, *std))) and all(s > 0 for s in std) else "mean or std is out of range"


def _peek(file: Path) -> dict[str, Any]:
    """Read a checkpoint without its tensors; return an empty recipe if it is not one of a run."""
    state = checkpoint.peek(file)
    return state if isinstance(state, dict) and isinstance(state.get("recipe"), dict) else {"recipe": {}}


def is_table(path: str) -> bool:
    """Check whether a path is a run on a table, which has no images; see `byov.evaluation.regressions`."""
    file = checkpoint_of(path)
    return not path.startswith("python:") and file.is_file() and _peek(file)["recipe"].get("kind") == "table"
