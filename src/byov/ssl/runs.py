"""Reading a pretraining run: its encoder, its data, and a probe with its protocol."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from byov.data import FolderSet
from byov.device import choose_device
from byov.ssl.byol import BYOL
from byov.ssl.pretrain import Pretrain, restore
from byov.ssl.probe import ProbeResult, ProbeSettings, evaluate_probe


@dataclass(frozen=True, eq=False)
class ProbedRun:
    """A run's probe, and everything that the numbers depend on."""

    module: BYOL
    recipe: Pretrain
    result: ProbeResult
    protocol: dict[str, Any]


def probe_run(
    run: Path,
    split: str = "test",
    samples: int = 30,
    fit_samples: int = 8,
    k: int = 200,
    seed: int = 0,
    root: str | None = None,
    device: str = "auto",
) -> ProbedRun:
    """Fit probes on a run's training images and read them on another split of the same data."""
    place = choose_device(device)
    module, recipe = restore(run, place)
    data = replace(recipe.data, root=root or recipe.data.root)
    train, test = data.load("train"), data.load(split)
    if isinstance(train, FolderSet) or isinstance(test, FolderSet):
        raise ValueError("Probes need the images in memory: make an .npz of the folder.")
    settings = ProbeSettings(k=min(k, max(1, len(train) // 10)), draws_fit=fit_samples, draws_read=samples, seed=seed)
    options: dict[str, Any] = {"mean": module.views.mean, "std": module.views.std, "device": place}
    result = evaluate_probe(module, train.to(place), test.to(place), settings, **options)
    protocol = {
        "run": str(run),
        "split": split,
        "settings": asdict(settings),
        "train": {"name": train.name, "digest": train.digest, "images": len(train)},
        "test": {"name": test.name, "digest": test.digest, "images": len(test)},
        "device": torch.cuda.get_device_name() if place.type == "cuda" else "cpu",
        "torch": str(torch.__version__),
    }
    return ProbedRun(module, recipe, result, protocol)
