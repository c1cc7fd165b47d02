"""Runs as exploration reads them; the only file here that knows how a run was trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from byov.data import ImageSet
from byov.data.labelled import labelled
from byov.evaluation.predictors import Classifier, Predictor, Probed
from byov.evaluation.subjects import Pretrained, Reading, Subject, digest, subject
from byov.posterior.module import BayesianModule
from byov.posterior.random import stream
from byov.prediction import Prediction, predict
from byov.ssl.features import feature_draws
from byov.ssl.probe import READ


@dataclass(frozen=True)
class Settings:
    """How runs are read: draws, images, bootstraps, and the seed of all chance."""

    samples: int = 50
    bootstraps: int = 50
    seed: int = 0
    limit: int | None = 2000
    """Test images, at random; None: all."""
    train_limit: int | None = None
    """Training images that a probe is fitted on."""
    fit_samples: int = 8
    root: str | None = None
    device: str = "cpu"
    batch_size: int = 512

    def __post_init__(self) -> None:
        if self.samples < 2 or self.bootstraps < 2:
            raise ValueError("Exploration needs at least two draws and two bootstraps.")
        if self.limit is not None and self.limit < 8:
            raise ValueError(f"Exploration needs at least 8 images, not {self.limit}.")
        if self.train_limit is not None and self.train_limit < 1:
            raise ValueError(f"A probe is fitted on at least one image, not {self.train_limit}.")


class Run:
    """A run of `byov pretrain` (read through a linear probe, fitted when first needed) or of `byov train`."""

    def __init__(self, path: Path, name: str, settings: Settings) -> None:
        self.path, self.name, self.settings = path, name, settings
        s = settings
        reading = Reading(s.samples, "loop", s.seed, s.fit_samples, False, s.batch_size, torch.device(s.device))
        self.subject: Subject = subject(str(path), reading)

    @property
    def posterior(self) -> bool:
        return self.subject.posterior

    @property
    def student(self) -> BayesianModule | None:
        """The whole student of a pretraining run with a posterior: encoder, projector and predictor."""
        student = getattr(self.subject.weights, "student", None)
        return student if isinstance(self.subject, Pretrained) and isinstance(student, BayesianModule) else None

    @property
    def normalised(self) -> tuple[Sequence[float] | None, Sequence[float] | None]:
        """The mean and std that its images are standardised by."""
        if isinstance(self.subject, Pretrained):
            views = self.subject.module.views
            return views.mean, views.std
        about = self.subject.about(None)
        return about["mean"], about["std"]

    def _load(self, split: str, limit: int | None = None) -> ImageSet:
        assert self.subject.data is not None
        assert self.subject.shape is not None
        return labelled(self.subject.data, split, self.settings.root, *self.subject.shape, limit, self.settings.seed)

    @cached_property
    def _test(self) -> tuple[ImageSet, Tensor]:
        data = self._load("test")
        limit = self.settings.limit
        if limit is None or limit >= len(data):
            return data, torch.arange(len(data))
        order = torch.randperm(len(data), generator=Generator().manual_seed(self.settings.seed))
        return data.subset(order[:limit].sort().values), order[:limit].sort().values

    @property
    def test(self) -> ImageSet:
        """The test images that it is read on; runs of the same data are read on the same."""
        return self._test[0]

    @property
    def places(self) -> Tensor:
        """Their places in the whole test set."""
        return self._test[1]

    @property
    def images(self) -> Tensor:
        """The test images in [0, 1]."""
        return self.test.images.float() / 255

    @cached_property
    def predictor(self) -> Predictor:
        train = self._load("train", self.settings.train_limit) if self.subject.needs_train else None
        return self.subject.predictor(train)

    @cached_property
    def at_mean(self) -> Prediction:
        """What it predicts of the test images at μ."""
        return self.predictor(self.images)

    @cached_property
    def under_draws(self) -> Prediction:
        """What it predicts of them under draws."""
        return self.predictor(self.images, self.settings.samples)

    def draws(self, images: Tensor) -> Tensor:
        """Class probabilities (S, N, C) of images in [0, 1], draw by draw; the same draws at every call."""
        predictor, samples = self.predictor, self.settings.samples
        if isinstance(predictor, Probed):
            probe = predictor.probe
            generator = Generator(probe.encoder.device or "cpu").manual_seed(stream(probe.seed, READ))
            head = probe.under_draws["linear"]
            drawn = feature_draws(probe.encoder, images, samples, generator, **probe.options)
            return torch.stack([head.probabilities(features).cpu() for features in drawn])
        assert isinstance(predictor, Classifier)
        generator = Generator(predictor.device).manual_seed(stream(predictor.seed, READ))
        batches = predictor._batches(images)
        kept = predict(predictor.net, batches, samples, "loop", None, generator, keep=True, progress=False).draws
        assert kept is not None
        return kept.cpu()

    def about(self) -> dict[str, Any]:
        """Which weights and which images: the numbers depend on them."""
        weights = {"kind": self.subject.kind, "weights": digest(self.subject.weights), "posterior": self.posterior}
        return {**weights, "data": {"name": self.test.name, "digest": self.test.digest, "images": len(self.test)}}
