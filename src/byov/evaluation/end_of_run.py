"""The lines that a command prints at the end of a run: scores, warnings and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from byov.data import ImageSet
from byov.data.labelled import check_classes, in_memory
from byov.data.printable import reason
from byov.device import choose_device
from byov.evaluation.check import check, formatted, sigma_movement
from byov.evaluation.regressions import open_table, predicted
from byov.evaluation.scores import main_scores
from byov.metrics.functional import accuracy
from byov.posterior import BayesianModule
from byov.runs import Reading, open_run
from byov.runs.run import Pretrained, Run
from byov.ssl.classifiers import KNN, neighbours
from byov.ssl.features import features
from byov.train.readme import evaluation
from byov.train.tabular import held_out

LIMIT = 2000
"""The most images, chosen at random: this is a quick look, not an evaluation."""
SAMPLES, BATCH = 30, 256


def train_lines(folder: Path) -> list[str]:
    """Return the last lines of `byov train`; if something cannot be read, they give the reason."""
    try:
        lines = _scores(_opened(folder))
    except Exception as error:  # the run is finished and saved, even if its images cannot be read
        lines = [_unread(error)]
    return [*lines, f"Next: {evaluation(folder, 'train')}"]


def table_lines(folder: Path) -> list[str]:
    """Return the last lines of `byov train` on a table; if something cannot be read, they give the reason."""
    try:
        lines = [_table_scores(folder)]
    except Exception as error:  # as above
        lines = [_unread(error)]
    return [*lines, f"Next: {evaluation(folder, 'table')}"]


def pretrain_lines(folder: Path) -> list[str]:
    """Return the last lines of `byov pretrain`; if something cannot be read, they give the reason."""
    lines, data = [], ""
    try:
        run = _opened(folder)
        assert isinstance(run, Pretrained)
        if run.q is not None:
            lines += [f"warning: {sentence}" for sentence in sigma_movement(run.q)[1]]
        if run.recipe.data.load("train").labels is None:
            data = " --data NAME (of labelled images)"
        else:
            lines.append(_neighbours(run))
    except Exception as error:  # as above
        lines.append(_unread(error))
    return [*lines, f"Next: byov probe {shlex.quote(str(folder))}{data}"]


def _unread(error: Exception) -> str:
    return f"No scores: {reason(error)}"


def _opened(folder: Path) -> Run:
    reading = Reading(samples=SAMPLES, trust=True)  # its recipe has just been run
    run = open_run(folder, reading)
    if run.recipe.train.accelerator == "cpu":
        return run
    return open_run(folder, replace(reading, device=choose_device("auto")))


def _images(run: Run, split: str) -> ImageSet:
    """Load at most LIMIT labelled images of a split; "test" means the held-out images if the recipe holds any out."""
    config = run.recipe.data
    split = "holdout" if split == "test" and config.holdout else split
    data = config.load(split)
    if data.labels is not None and len(data) > LIMIT:
        order = torch.randperm(len(data), generator=Generator().manual_seed(0))
        data = data.subset(order[:LIMIT].sort().values)
    return in_memory(data, split)


def _scores(run: Run) -> list[str]:
    data = _images(run, "test")
    assert data.labels is not None
    if tuple(data.class_names) != run.class_names:
        return ["No scores: the test images and the training images have different classes."]
    what = f"{run.recipe.data.name}, {'held out' if run.recipe.data.holdout else 'test'}"
    if run.q is None:
        probs = run.predictor(data.images.float() / 255).mean
        return [f"{what}: {len(data):,} inputs: {formatted(main_scores(probs, data.labels))}"]
    generator = Generator(run.reading.device).manual_seed(run.reading.seed)
    found = check(run.q, _batches(data, run.normalisation), samples=SAMPLES, generator=generator)
    return f"{what}: {found}".splitlines()


def _table_scores(folder: Path) -> str:
    """Score the test rows of a run on a table, and say which column is the target."""
    module, recipe, like = open_table(folder, torch.device("cpu"), trust=True)
    _, X, y = held_out(recipe, like)
    posterior = isinstance(module.net, BayesianModule)
    scores = predicted(module, like, X, SAMPLES if posterior else None).scores(y)
    reading = f" under {SAMPLES} draws" if posterior else ""
    return (
        f"{recipe.data.name}, target {recipe.data.target_name(like)}: {len(y):,} test rows{reading}:"
        f" RMSE {scores['rmse']:.4g}, log density {scores['log_density']:.3f}"
    )


def _batches(data: ImageSet, normalisation: dict[str, Any]) -> Iterator[tuple[Tensor, Tensor]]:
    assert data.labels is not None
    mean, std = (torch.tensor(normalisation[name]).view(1, -1, 1, 1) for name in ("mean", "std"))
    for images, labels in zip(data.images.split(BATCH), data.labels.split(BATCH), strict=True):
        yield (images.float() / 255 - mean) / std, labels


def _neighbours(run: Pretrained) -> str:
    """Score nearest neighbours at μ, which needs no fitting."""
    train, test = _images(run, "train"), _images(run, "test")
    check_classes(train, test, "test")
    assert train.labels is not None
    assert test.labels is not None
    known, unseen = (features(run.encoder, data.images, **run.probe_options) for data in (train, test))
    k = neighbours(len(train))
    knn = KNN(known, train.labels.to(known.device), k, classes=len(train.class_names))
    right = accuracy(knn(unseen), test.labels.to(known.device)).item()
    of = f"{len(test):,} {'held-out' if run.recipe.data.holdout else 'test'} images"
    return f"{run.recipe.data.name}: kNN at μ {100 * right:.1f} % of {of} (k = {k}, {len(train):,} training images)"
