"""Good runs, files and data, tiny and made once: what the fuzz damages copies of."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path

from .check import call

SHORT = ("train.accelerator=cpu", "train.devices=1", "train.epochs=1", "train.warmup=0", "train.log_every=1")
DIGITS = (*SHORT, "data.name=digits", "train.batch=256")
HEADS = ("model.encoder=convnet16", "model.hidden=8", "model.outputs=4")
CPU = ("--device", "cpu")


@dataclass(frozen=True)
class World:
    """A folder with a run of each kind (`pretrain`, `train`, `table`), a table and files of results."""

    folder: Path
    recipes: dict[str, tuple[str, ...]]
    """The settings of each run."""
    results: dict[str, Path] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Path:
        return self.folder / name

    def checkpoint(self, kind: str) -> Path:
        return self.folder / kind / "checkpoint.safetensors"


def build(folder: Path) -> World:
    """Make the world by the commands themselves."""
    with (folder / "table.csv").open("w", newline="") as file:
        write = csv.writer(file)
        write.writerow(["a", "b", "y"])
        write.writerows([i, i * i % 7, (3 * i + i * i) % 5] for i in range(60))
    recipes = {
        "pretrain": (*DIGITS, *HEADS),
        "train": (*DIGITS, "model.name=convnet16", "posterior.family=gaussian"),
        "table": (*SHORT, f"data.name=table:{folder / 'table.csv'}", "train.batch=16", "model.hidden=8"),
    }
    world = World(folder, recipes, {name: folder / f"{name}.json" for name in ("evaluate", "probe", "sweep")})
    for kind, settings in recipes.items():
        verb = "pretrain" if kind == "pretrain" else "train"
        done(verb, "--run", folder / kind, *(word for each in settings for word in ("--set", each)))
    few = ("--samples", "2", "--fit-samples", "1", *CPU)
    out = world.results
    done("evaluate", folder / "train", "--limit", "40", *few, "--out", out["evaluate"])
    done("probe", folder / "pretrain", "--k", "10", *few, "--out", out["probe"])
    done("prune", folder / "train", "--sweep", "--sparsities", "0,0.5", *CPU, "--out", out["sweep"])
    done("explore", folder / "train", "--what", "layers", *CPU, "--out", folder / "explored")
    out["layers"] = folder / "explored" / "layers.json"
    done("reproduce", "patching/table3", *CPU, "--out", folder / "reproduced")
    out["reproduce"] = folder / "reproduced" / "patching" / "table3" / "result.json"
    return world


def done(*words: object) -> None:
    found = call(*words)
    assert found.status == 0, (words, found)
