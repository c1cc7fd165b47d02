"""Files of results: written whole or not at all, and never over what is there unasked."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def check_out(path: Path, force: bool = False, option: str = "--out") -> None:
    """Refuse a file that could not be written, or that would be lost, before any work is done for it."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: {option} takes the name of a file.")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists: choose another {option}, or say --force.")
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"{nearest} is a file: there can be no {path.name} below it.")


def write_json(path: Path, content: Any) -> None:
    """Write `content` whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(partial, path)
