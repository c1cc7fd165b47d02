"""What a run, or any command, has left in its folder, and whether two have left the same."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from byov.train import checkpoint


def contents(folder: Path) -> dict[str, str]:
    """Every name in a folder, with a digest of the file; but for a run's lock."""
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
        for path in folder.rglob("*")
        if path.name != ".lock"
    }


def log(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def state(run: Path) -> dict[str, Any]:
    """All of a checkpoint that neither the clock nor a free setting decides."""
    tree = checkpoint.load(run / "checkpoint.safetensors")
    return {key: tree[key] for key in ("module", "optimizer", "step", "total", "position")}


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """Where two trees are not equal to the bit."""
    if isinstance(a, Tensor):
        return [] if isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b) else [where]
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [where]
        return [found for key in a for found in differences(a[key], b[key], f"{where}/{key}")]
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return [where]
        return [found for i, pair in enumerate(zip(a, b, strict=True)) for found in differences(*pair, f"{where}/{i}")]
    return [] if a == b else [where]
