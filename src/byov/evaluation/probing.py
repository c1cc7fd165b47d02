"""kNN and linear probes on the encoder of a pretraining run, with their protocol."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from byov.data import ImageSet
from byov.data.labelled import check_classes
from byov.device import choose_device
from byov.evaluation.rows import which_images
from byov.runs import Reading, open_run
from byov.runs.reading import Precision
from byov.runs.run import Pretrained
from byov.ssl.classifiers import neighbours
from byov.ssl.features import Side
from byov.ssl.linear_evaluation import Advance, LinearSettings, batch_size, linear_evaluation
from byov.ssl.probe import ProbeResult, ProbeSettings, evaluate_probe

ProbeProtocol = Literal["lbfgs", "byol"]
LINEAR = {"student": "byol", "student_draws": "byol_draws", "teacher": "byol_teacher"}
"""The readings of BYOL's linear evaluation and their names in a result; each also has a NAME_tempered."""


@dataclass(frozen=True, eq=False)
class ProbedRun:
    """The probes of a run, and everything that their scores depend on."""

    run: Pretrained
    result: ProbeResult
    protocol: dict[str, Any]


def probe_run(
    path: str | Path,
    split: str = "test",
    samples: int = 30,
    fit_samples: int = 8,
    k: int | None = None,
    seed: int = 0,
    root: str | Path | None = None,
    device: str = "auto",
    data: str | None = None,
    temper: int = 0,
    trust: bool = False,
    *,
    protocol: ProbeProtocol = "lbfgs",
    network: Side = "student",
    epochs: int = 80,
    precision: Precision = "32-true",
    report: Advance | None = None,
) -> ProbedRun:
    """Fit probes on the training images of a dataset, by default the run's own, and score them on another split.

    `protocol="byol"` adds BYOL's linear evaluation of student and teacher to the probes of `network` fitted by L-BFGS;
    `epochs` is its length, and `report` its progress callback.
    """
    if protocol not in get_args(ProbeProtocol):
        raise ValueError(f"The protocol must be lbfgs or byol, not {protocol!r}.")
    linear = LinearSettings(epochs=epochs, draws_read=samples, seed=seed) if protocol == "byol" else None
    place = choose_device(device)
    reading = Reading(seed=seed, root=root, device=place, data=data, network=network, precision=precision, trust=trust)
    run = open_run(path, reading)
    if not isinstance(run, Pretrained):
        raise ValueError(f"{path} is not a run of byov pretrain.")
    load = run.load_own if data is None else run.load
    train, test = load("train"), load(split)
    check_classes(train, test, split)
    k = neighbours(len(train), k)
    settings = ProbeSettings(k=k, draws_fit=fit_samples, draws_read=samples, seed=seed, temper=temper)
    train, test = train.to(place), test.to(place)
    result = evaluate_probe(run.encoder, train, test, settings, **run.probe_options)
    about = {
        "run": str(path),
        "split": split,
        "settings": asdict(settings),
        "train": which_images(train),
        "test": which_images(test),
        "temperatures": result.probe.temperatures,
        "device": torch.cuda.get_device_name() if place.type == "cuda" else "cpu",
        "torch": str(torch.__version__),
    }
    # The defaults are not recorded, as in older files.
    about |= {"network": network} if network != "student" else {}
    about |= {"precision": precision} if precision != "32-true" else {}
    if linear is not None:
        result, about["linear_evaluation"] = _with_linear(run, train, test, linear, report, result)
    return ProbedRun(run, result, about)


def _with_linear(
    run: Pretrained, train: ImageSet, test: ImageSet, settings: LinearSettings, report: Advance | None, to: ProbeResult
) -> tuple[ProbeResult, dict[str, Any]]:
    """Add the readings of BYOL's linear evaluation to a result; return its protocol too."""
    scores, predictions = dict(to.scores), dict(to.predictions)
    found = linear_evaluation(run.module, train, test, settings, report, **run.probe_options)
    for reading, each in found.items():
        name = LINEAR[reading]
        scores |= {name: each.scores, f"{name}_tempered": each.tempered}
        predictions[name] = each.prediction
    about = {
        **asdict(settings),
        "batch": batch_size(len(train), settings),
        "optimizer": "SGD, Nesterov, no decay; cosine to 0; rates times batch/256",
        "images": "random resized crops (area 0.08 to 1) and flips to train on, whole images to read",
        "chosen": {LINEAR[reading]: each.protocol() for reading, each in found.items()},
    }
    return replace(to, scores=scores, predictions=predictions), about
