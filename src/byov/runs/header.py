"""What a checkpoint says about its run, read without its tensors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byov.train import checkpoint
from byov.train.config import flatten

CHECKPOINT = "checkpoint.safetensors"


@dataclass(frozen=True)
class Header:
    """A run's checkpoint, its recipe and how far it got."""

    file: Path
    about: dict[str, Any]
    """Kind, config, data and shape, as training wrote them."""
    step: int
    total: int

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def kind(self) -> str:
        """ "pretrain", "train" or "table"."""
        return self.about["kind"]

    @property
    def config(self) -> dict[str, Any]:
        """The recipe as nested dictionaries."""
        return self.about["config"]

    @property
    def finished(self) -> bool:
        return self.step >= self.total

    def trusted(self, trust: bool) -> Header:
        """Return the header; without trust, refuse a recipe that names code to import: it may be somebody else's."""
        for key, value in flatten(self.config).items():
            if isinstance(value, str) and value.startswith("python:") and not trust:
                named = f"{self.file} names code to import, {key} = {value}"
                raise ValueError(f"{named}: add --trust (in Python trust=True) if you know whose it is.")
        return self

    def records(self, name: str) -> list[dict[str, Any]]:
        """Read the objects of a file beside the checkpoint; see `read_lines`."""
        return read_lines(self.folder / name)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a file with one per line, none if it is missing; leave out a line that a kill cut short."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            item = json.loads(line)
        except ValueError:
            continue
        if isinstance(item, dict):
            found.append(item)
    return found


def checkpoint_of(path: str | Path) -> Path:
    """Return the checkpoint of a run that is named by its folder or its checkpoint."""
    path = Path(path).expanduser()
    return path / CHECKPOINT if path.is_dir() else path


def read_header(path: str | Path, kinds: Sequence[str] = ("pretrain", "train")) -> Header:
    """Read the header of a run, named by its folder or its checkpoint; refuse other kinds of runs."""
    file = checkpoint_of(path)
    if not file.is_file():
        raise ValueError(f"There is no run at {path}: name a run's folder or its checkpoint.")
    state = checkpoint.peek(file)
    about = state.get("recipe") if isinstance(state, dict) else None
    kind = about.get("kind") if isinstance(about, dict) else None
    if not isinstance(about, dict) or kind not in kinds or not {"config", "data", "shape"} <= set(about):
        raise ValueError(f"{path} is not a run of byov {' or byov '.join(kinds)}: its kind is {kind!r}.")
    return Header(file, about, int(state.get("step") or 0), int(state.get("total") or 0))


def is_table(path: str) -> bool:
    """Tell whether a name is that of a run on a table, which has no images; see `byov.evaluation.regressions`."""
    file = checkpoint_of(path)
    if path.startswith("python:") or not file.is_file():
        return False
    state = checkpoint.peek(file)
    about = state.get("recipe") if isinstance(state, dict) else None
    return isinstance(about, dict) and about.get("kind") == "table"
