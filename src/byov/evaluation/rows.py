"""An evaluation: one row of scores for the clean images, one for every shift at every severity, and their means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any
from zlib import crc32

import torch
from torch import Generator, Tensor, nn

from byov.data import FolderSet, ImageSet
from byov.data.augmentations import AUGMENTATIONS
from byov.data.corruptions import CORRUPTIONS
from byov.data.shift import SEVERITIES, SMALL_SIDE, Shift, check_severity
from byov.evaluation.scores import Scores, scores
from byov.metrics import functional as metrics
from byov.posterior.random import stream
from byov.prediction import Prediction
from byov.runs.predictor import Classifier, Predictor

SHIFTS: dict[str, dict[str, Shift]] = {"none": {}, "augmentations": AUGMENTATIONS, "corruptions": CORRUPTIONS}
CIFAR_SIDE = 32
CLEAN = "clean"
READINGS = ("at_mean", "under_draws")
CHUNK = 512
"""How many images are shifted at a time. Never changed: a shift's random numbers are drawn chunk by chunk."""
BLOCK_BYTES = 1 << 28
"""Shifted images that are predicted at a time, as floats: every draw is made once for all of them."""


# The shifts


def shifts_for(kind: str, data: ImageSet) -> tuple[dict[str, Shift], dict[str, str]]:
    """Return the shifts of a kind that are defined on these images, and for the others why they are not."""
    if kind not in SHIFTS:
        raise ValueError(f"A shift is {', '.join(SHIFTS)}, not {kind!r}.")
    defined, left_out = {}, {}
    probe = data.images[:1].float() / 255
    for name, shift in SHIFTS[kind].items():
        try:
            shift(probe, max(SEVERITIES), torch.Generator(probe.device).manual_seed(0))
        except (ValueError, RuntimeError) as error:  # an image too small for a filter is told by torch
            left_out[name] = str(error).splitlines()[0]
        else:
            defined[name] = shift
    return defined, left_out


def which_images(data: ImageSet | FolderSet) -> dict[str, Any]:
    """Return what a protocol says of the images that its numbers depend on."""
    return {"name": data.name, "digest": data.digest, "images": len(data)}


def strength_note(kind: str, data: ImageSet) -> str:
    """Say whose strengths the corruptions have on images of this size."""
    side = min(data.images.shape[2:])
    if kind != "corruptions":
        return ""
    if side > SMALL_SIDE:
        return "Corruptions have ImageNet-C's strengths."
    note = "Corruptions have CIFAR-10-C's strengths"
    return (
        f"{note}." if side >= CIFAR_SIDE else f"{note}, which are made for {CIFAR_SIDE} pixels and harsher on {side}."
    )


def parse_severities(text: str) -> tuple[int, ...]:
    """Read "1-5", "3" or "1,3,5" as whole numbers from 1 to 5, each once and in order."""
    found: set[int] = set()
    try:
        for part in text.split(","):
            low, dash, high = part.partition("-")
            levels = range(int(low), int(high if dash else low) + 1)
            found |= set(levels[: len(SEVERITIES) + 1]) or {0}  # one too many are as wrong as a billion
    except ValueError:
        found = {0}
    if not found <= set(SEVERITIES):
        raise ValueError(f"Severities run from 1 to 5, such as 1-5 or 1,3,5, not {text!r}.")
    return tuple(sorted(found))


# The rows


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


# What they come to


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Return one row per shift with the means over its severities, at severity 0; last their mean, called "mean"."""
    names = list(dict.fromkeys(row.shift for row in rows if row.shift != CLEAN))
    each = [_mean(name, [row for row in rows if row.shift == name]) for name in names]
    return [*each, _mean("mean", each)] if each else []


def _mean(name: str, rows: Sequence[Row]) -> Row:
    drawn = [row.under_draws for row in rows if row.under_draws is not None]
    return Row(name, 0, _average([row.at_mean for row in rows]), _average(drawn) if drawn else None)


def _average(parts: Sequence[Scores]) -> Scores:
    """Return the mean of each score; None where one of them is not defined."""
    average: Scores = {}
    for name in parts[0]:
        values = [part.get(name) for part in parts]  # a row of an older file may lack one
        known = [value for value in values if value is not None]
        average[name] = sum(known) / len(known) if len(known) == len(values) else None
    return average


def corruption_errors(rows: Sequence[Row], baseline: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Compute mCE and relative mCE, in per cent of the baseline read at μ, of each reading of `rows`.

    `CE` holds them by corruption. A ratio that has no meaning, since a corruption does the baseline no harm, is None,
    and `note` says why.
    """
    other, other_clean = _errors(baseline, "at_mean")
    found: dict[str, dict[str, Any]] = {}
    for reading in READINGS:
        if getattr(rows[0], reading) is None:
            continue
        errors, clean = _errors(rows, reading)
        found[reading] = {"mCE": None, "relative_mCE": None, "CE": None, "note": None}
        try:
            each = metrics.corruption_error(errors, other)
            found[reading]["CE"] = {name: value.item() for name, value in each.items()}
            found[reading]["mCE"] = metrics.mean_corruption_error(errors, other).item()
            relative = metrics.relative_mean_corruption_error(errors, clean, other, other_clean)
            found[reading]["relative_mCE"] = relative.item()
        except ValueError as error:
            found[reading]["note"] = str(error)
    return found


def _errors(rows: Sequence[Row], reading: str) -> tuple[dict[str, list[float]], float]:
    """Return top-1 errors by corruption and severity, and on clean images."""
    errors: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda row: row.severity):
        errors.setdefault(row.shift, []).append(1 - getattr(row, reading)["top1"])
    return errors, errors.pop(CLEAN)[0]
