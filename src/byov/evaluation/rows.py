"""An evaluation: one row of scores for the clean images, and one for every shift at every severity."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from zlib import crc32

import torch
from torch import Generator, Tensor, nn

from byov.data.shift import SEVERITIES, Shift, check_severity
from byov.evaluation.scores import Scores, scores
from byov.posterior.random import stream
from byov.prediction import Prediction
from byov.runs.predictor import Classifier, Predictor

CLEAN = "clean"
CHUNK = 512
"""How many images are shifted at a time. Never changed: a shift's random numbers are drawn chunk by chunk."""
BLOCK_BYTES = 1 << 28
"""Shifted images that are predicted at a time, as floats: every draw is made once for all of them."""


@dataclass(frozen=True)
class Row:
    """The scores on images under one shift at one severity; clean images are at severity 0."""

    shift: str
    severity: int
    at_mean: Scores
    under_draws: Scores | None = None
    """None for a model without a posterior."""

    @property
    def key(self) -> tuple[str, int]:
        return self.shift, self.severity


def plan(shifts: Iterable[str], severities: Iterable[int]) -> list[tuple[str, int]]:
    """Return the rows of an evaluation, in their order."""
    severities = tuple(severities)
    return [(CLEAN, 0), *((name, severity) for name in shifts for severity in severities)]


def evaluate(
    predictor: Predictor | nn.Module,
    images: Tensor,
    labels: Tensor,
    shifts: Mapping[str, Shift] | None = None,
    severities: Sequence[int] = SEVERITIES,
    samples: int = 30,
    *,
    bins: int = 15,
    seed: int = 0,
    device: torch.device | str | None = None,
    known: Iterable[Row] = (),
    report: Callable[[Row], None] | None = None,
    observe: Callable[[Row, Sequence[Prediction]], None] | None = None,
) -> list[Row]:
    """Score a model on images, clean and shifted, at μ and, where it has a posterior, under draws.

    A pure function of its arguments: the random numbers of a shift come from (seed, its name, severity), whatever other
    rows there are.

    Args:
        predictor: what gives probabilities, or a network, which is then a `Classifier` with the same seed.
        images: (N, C, H, W), uint8, or floats in [0, 1].
        labels: (N,).
        shifts: by name, such as `CORRUPTIONS` or `AUGMENTATIONS`; none by default.
        severities: at which each is applied.
        samples: how many draws.
        bins: of the calibration errors; see `scores`.
        seed: of the shifts.
        device: where images are shifted; by default where they are.
        known: rows that were found before, by the same settings: they are not computed again.
        report: called with each new row as it is found.
        observe: called before that with the row and the predictions it scores: at μ and, with a posterior, under draws.

    Returns:
        All rows in the order of `plan`, known and new.
    """
    predictor = Classifier(predictor, seed=seed) if isinstance(predictor, nn.Module) else predictor
    _check(images, labels, samples)
    for severity in severities:
        check_severity(severity)
    shifts, found = shifts or {}, {row.key: row for row in known}
    todo = [key for key in plan(shifts, severities) if key not in found]
    for name in {name for name, _ in todo} - {CLEAN}:
        shifts[name](_floats(images[:1]))  # one image tells whether it is defined, before hours go by

    def predictions(name: str, severity: int) -> list[Prediction]:
        return _predict(predictor, images, samples, shifts.get(name), severity, seed, device)

    clean = predictions(CLEAN, 0) if todo else []
    for name, severity in todo:
        made = clean if name == CLEAN else predictions(name, severity)
        before = [None] * len(clean) if name == CLEAN else clean
        row = Row(name, severity, *(scores(p, labels, bins, b) for p, b in zip(made, before, strict=True)))
        found[row.key] = row
        if observe is not None:
            observe(row, made)
        if report is not None:
            report(row)
    return [found[key] for key in plan(shifts, severities)]


def _predict(
    predictor: Predictor,
    images: Tensor,
    samples: int,
    shift: Shift | None,
    severity: int,
    seed: int,
    device: torch.device | str | None,
) -> list[Prediction]:
    """Predict at μ and, with a posterior, under draws, images that are shifted once for both."""
    place = torch.device(images.device if device is None else device)
    readings: list[int | None] = [None, samples] if predictor.posterior else [None]
    parts: list[list[Prediction]] = [[] for _ in readings]
    chunks = max(1, BLOCK_BYTES // (4 * CHUNK * images[0].numel()))
    moved = shifted(images, shift, severity, seed, place)
    while block := list(islice(moved, chunks)):
        batch = torch.cat(block)
        for part, draws in zip(parts, readings, strict=True):
            part.append(predictor(batch, draws))
    return [Prediction.cat(part) for part in parts]


def shifted(images: Tensor, shift: Shift | None, severity: int, seed: int, place: torch.device) -> Iterator[Tensor]:
    """Yield the images as floats under a shift, or as they are, chunk by chunk; the same for the same seed."""
    generator = Generator(place)
    if shift is not None:
        generator.manual_seed(stream(seed, crc32(shift.name.encode()), severity))
    for chunk in images.split(CHUNK):
        floats = _floats(chunk.to(place))
        yield floats if shift is None else shift(floats, severity, generator)


def _floats(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def _check(images: Tensor, labels: Tensor, samples: int) -> None:
    if not isinstance(images, Tensor) or images.ndim != 4 or not len(images):
        got = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(f"Images are a tensor (N, C, H, W) with N > 0, not {got}.")
    if not isinstance(labels, Tensor) or labels.shape != images.shape[:1]:
        raise ValueError(f"An evaluation needs a label for each of its {len(images)} images.")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"An evaluation needs at least one draw, not samples={samples!r}.")
