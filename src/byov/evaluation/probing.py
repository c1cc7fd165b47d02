"""kNN and linear probes on the encoder of a pretraining run, with their protocol."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from byov.data.labelled import check_classes
from byov.device import choose_device
from byov.runs import Reading, open_run
from byov.runs.run import Pretrained
from byov.ssl.probe import ProbeResult, ProbeSettings, evaluate_probe


@dataclass(frozen=True, eq=False)
class ProbedRun:
    """A run's probes, and everything that the numbers depend on."""

    run: Pretrained
    result: ProbeResult
    protocol: dict[str, Any]


def probe_run(
    path: str | Path,
    split: str = "test",
    samples: int = 30,
    fit_samples: int = 8,
    k: int = 200,
    seed: int = 0,
    root: str | None = None,
    device: str = "auto",
    data: str | None = None,
    temper: int = 0,
    trust: bool = False,
) -> ProbedRun:
    """Fit probes on the training images of a set, by default the run's own, and read them on another split of it."""
    place = choose_device(device)
    run = open_run(path, Reading(seed=seed, root=root, device=place, data=data, trust=trust))
    if not isinstance(run, Pretrained):
        raise ValueError(f"{path} is not a run of byov pretrain.")
    load = run.load_own if data is None else run.load
    train, test = load("train"), load(split)
    check_classes(train, test, split)
    k = min(k, max(1, len(train) // 10))
    settings = ProbeSettings(k=k, draws_fit=fit_samples, draws_read=samples, seed=seed, temper=temper)
    result = evaluate_probe(run.module, train.to(place), test.to(place), settings, **run.probe_options)
    protocol = {
        "run": str(path),
        "split": split,
        "settings": asdict(settings),
        "train": {"name": train.name, "digest": train.digest, "images": len(train)},
        "test": {"name": test.name, "digest": test.digest, "images": len(test)},
        "temperatures": result.probe.temperatures,
        "device": torch.cuda.get_device_name() if place.type == "cuda" else "cpu",
        "torch": str(torch.__version__),
    }
    return ProbedRun(run, result, protocol)
