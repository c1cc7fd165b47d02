"""A run opened for a report: its network, its images, and its scores clean and under shift."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import byov
from byov.data.labelled import labelled
from byov.data.shift import Shift
from byov.evaluation.images import shifts_for
from byov.evaluation.predictors import Predictor
from byov.evaluation.rows import Row, evaluate
from byov.evaluation.scores import conventions
from byov.evaluation.subjects import Pretrained, Reading, Subject, digest, subject
from byov.posterior.module import BayesianModule
from byov.prediction import Prediction
from byov.ssl.probe import ProbeSettings

FEW = ("gaussian_noise", "salt_and_pepper", "rotation", "blur", "contrast")
"""The shifts of a report, unless others are asked for: those of the demo."""


@dataclass(frozen=True)
class Asked:
    """How runs are read, the same for all of them."""

    samples: int = 30
    shift: str = "few"
    """few, augmentations, corruptions or none."""
    severities: tuple[int, ...] = (1, 3, 5)
    limit: int | None = 2000
    """At most so many images of the split, drawn at random."""
    split: str = "test"
    bins: int = 15
    seed: int = 0
    fit_samples: int = 8


class Opened:
    """A run that is ready to be measured."""

    def __init__(
        self, run: Path, asked: Asked, root: str | None, device: torch.device, name: str | None = None
    ) -> None:
        self.asked, self.root, self.device = asked, root, device
        reading = Reading(asked.samples, "loop", asked.seed, asked.fit_samples, device=device)
        self.name = name or str(run)
        self.found: Subject = subject(str(run), reading)

    @cached_property
    def images(self) -> Any:
        return self._load(self.asked.split, self.asked.limit)

    @cached_property
    def train(self) -> Any:
        return self._load("train", None) if self.found.needs_train else None

    @cached_property
    def predictor(self) -> Predictor:
        self.found.check(self.images)
        return self.found.predictor(self.train)

    @cached_property
    def clean(self) -> Tensor:
        """The images as floats in [0, 1]."""
        return (self.images.images.float() / 255).to(self.device)

    @property
    def labels(self) -> Tensor:
        assert self.images.labels is not None
        return self.images.labels

    @property
    def samples(self) -> int | None:
        """The draws that the model is read under; None without a posterior."""
        return self.asked.samples if self.predictor.posterior else None

    @property
    def q(self) -> BayesianModule | None:
        """The posterior, if there is one."""
        net = self.network
        return net if isinstance(net, BayesianModule) else None

    @property
    def network(self) -> nn.Module:
        """What has the weights: the student of a pretraining run, or the classifier."""
        return self.found.module.student if isinstance(self.found, Pretrained) else self.found.weights

    @property
    def pretrained(self) -> bool:
        return isinstance(self.found, Pretrained)

    def _load(self, split: str, limit: int | None) -> Any:
        assert self.found.data is not None
        channels, size = self.found.shape or (None, None)
        return labelled(self.found.data, split, self.root, channels, size, limit, self.asked.seed)


def identity(run: Opened) -> dict[str, Any]:
    """Which network, how large, and how much of it is random."""
    q, net = run.q, run.network
    sizes = {name: tensor.numel() for name, tensor in (q.mean() if q is not None else {}).items()}
    points = sum(p.numel() for p in net.parameters()) if q is None else sum(p.numel() for _, p in q.points())
    return {
        "digest": digest(run.found.weights),
        "random": sum(sizes.values()),
        "weights": points + sum(sizes.values()),
        "data": run.found.data,
    }


def protocol(run: Opened, shifts: dict[str, Shift], left_out: dict[str, str]) -> dict[str, Any]:
    """The protocol of the rows, in the words of `byov evaluate`."""
    asked, data, train = run.asked, run.images, run.train
    weights = {"name": run.name, "kind": run.found.kind, "digest": digest(run.found.weights)}
    shape = list(data.images.shape[1:])
    return {
        "seed": asked.seed,
        "samples": asked.samples if run.found.posterior else None,
        "strategy": "loop",
        "bins": asked.bins,
        "shift": "augmentations" if asked.shift == "few" else asked.shift,
        "severities": list(asked.severities) if shifts else [],
        "shifts": list(shifts),
        "left_out": left_out,
        "data": {
            "name": data.name,
            "split": asked.split,
            "digest": data.digest,
            "images": len(data),
            "shape": shape,
        },
        "train": None if train is None else {"digest": train.digest, "images": len(train)},
        "model": {**weights, "posterior": run.found.posterior, **run.found.about(train)},
        "conventions": conventions(asked.bins),
        "device": run.device.type,
        "versions": {"byov": byov.__version__, "torch": str(torch.__version__)},
    }


def shifts_asked(run: Opened) -> tuple[dict[str, Shift], dict[str, str]]:
    """The shifts by name, and why others are left out."""
    few = run.asked.shift == "few"
    found, left_out = shifts_for("augmentations" if few else run.asked.shift, run.images)
    if few:
        found = {name: shift for name, shift in found.items() if name in FEW}
        left_out = {name: reason for name, reason in left_out.items() if name in FEW}
    return found, left_out


class Recorder:
    """A predictor that remembers how sure it was of each image, and of which class."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.seen: dict[str, list[tuple[Tensor, Tensor]]] = {}

    @property
    def posterior(self) -> bool:
        return self.predictor.posterior

    def __call__(self, images: Tensor, samples: int | None = None) -> Prediction:
        found = self.predictor(images, samples)
        confidence, predicted = found.mean.max(1)
        reading = "at_mean" if samples is None else "under_draws"
        self.seen.setdefault(reading, []).append((confidence.cpu(), predicted.cpu()))
        return found

    def take(self, labels: Tensor) -> dict[str, dict[str, Any]]:
        """By reading, of the images that were predicted last: the confidences, and 1 for a hit."""
        taken = {}
        for reading, parts in self.seen.items():
            confidence, predicted = (torch.cat(each)[-len(labels) :] for each in zip(*parts, strict=True))
            hits = (predicted == labels.cpu()).int().tolist()
            taken[reading] = {"confidence": [round(c, 6) for c in confidence.tolist()], "correct": hits}
        self.seen = {}
        return taken


def rows(run: Opened, shifts: dict[str, Shift], known: list[Row], done: Callable[[Row, Any], None]) -> list[Row]:
    """Evaluate what is not `known`; `done` gets each new row and what `Recorder.take` gives of it."""
    recorder = Recorder(run.predictor)
    return evaluate(
        recorder,
        run.images.images,
        run.labels,
        shifts,
        run.asked.severities if shifts else (),
        run.asked.samples,
        bins=run.asked.bins,
        seed=run.asked.seed,
        device=run.device,
        known=known,
        report=lambda row: done(row, recorder.take(run.labels)),
    )


def settings(asked: Asked, checkpoint: str) -> dict[str, Any]:
    """What every kept part depends on: the weights, how they are asked, and how a probe is fitted."""
    code = {"byov": byov.__version__, "probe": asdict(ProbeSettings())}
    return {"checkpoint": checkpoint, **asdict(asked), **code}
