"""Reading a pretraining run: its encoder, its data, and a probe with its protocol."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from byov.data.labelled import check_classes, in_memory, labelled
from byov.device import choose_device
from byov.ssl.byol import BYOL
from byov.ssl.pretrain import Pretrain, restore
from byov.ssl.probe import ProbeResult, ProbeSettings, evaluate_probe
from byov.train.run import reopen


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
    data: str | None = None,
    temper: int = 0,
) -> ProbedRun:
    """Fit probes on the training images of a set, by default the run's own, and read them on another split of it."""
    place = choose_device(device)
    module, recipe = restore(run, place)
    if data is None:
        own = replace(recipe.data, root=root or recipe.data.root)
        train, test = (in_memory(own.load(part), part) for part in ("train", split))
    else:
        _, like = reopen(run, "pretrain")
        train, test = (labelled(data, part, root, like.channels, like.image_size) for part in ("train", split))
    check_classes(train, test, split)
    k = min(k, max(1, len(train) // 10))
    settings = ProbeSettings(k=k, draws_fit=fit_samples, draws_read=samples, seed=seed, temper=temper)
    options: dict[str, Any] = {"mean": module.views.mean, "std": module.views.std, "device": place}
    options["channels_last"] = place.type == "cuda"
    result = evaluate_probe(module, train.to(place), test.to(place), settings, **options)
    protocol = {
        "run": str(run),
        "split": split,
        "settings": asdict(settings),
        "train": {"name": train.name, "digest": train.digest, "images": len(train)},
        "test": {"name": test.name, "digest": test.digest, "images": len(test)},
        "temperatures": result.probe.temperatures,
        "device": torch.cuda.get_device_name() if place.type == "cuda" else "cpu",
        "torch": str(torch.__version__),
    }
    return ProbedRun(module, recipe, result, protocol)
