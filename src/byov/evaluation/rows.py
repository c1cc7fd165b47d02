"""An evaluation: one row of scores for clean images and one for each shift and severity, with their means."""

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
"""Images shifted at a time. Do not change it: a shift draws its random numbers chunk by chunk."""
BLOCK_BYTES = 1 << 28
"""Bytes of shifted images, as floats, predicted at a time; each draw is made once per block."""


# The shifts


def shifts_for(kind: str, data: ImageSet) -> tuple[dict[str, Shift], dict[str, str]]:
    """Return the shifts of a kind that are defined on these images, and why the others are not."""
    if kind not in SHIFTS:
        raise ValueError(f"The shift must be {', '.join(SHIFTS)}, not {kind!r}.")
    defined, left_out = {}, {}
    probe = data.images[:1].float() / 255
    for name, shift in SHIFTS[kind].items():
        try:
            shift(probe, max(SEVERITIES), torch.Generator(probe.device).manual_seed(0))
        except (ValueError, RuntimeError) as error:  # torch raises if an image is too small for a filter
            left_out[name] = str(error).splitlines()[0]
        else:
            defined[name] = shift
    return defined, left_out


def which_images(data: ImageSet | FolderSet) -> dict[str, Any]:
    """Return how a protocol identifies the images."""
    return {"name": data.name, "digest": data.digest, "images": len(data)}


def strength_note(kind: str, data: ImageSet) -> str:
    """Say which benchmark's corruption strengths apply to images of this size."""
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
    """Parse "1-5", "3" or "1,3,5" into sorted, distinct integers from 1 to 5."""
    found: set[int] = set()
    try:
        for part in text.split(","):
            low, dash, high = part.partition("-")
            levels = range(int(low), int(high if dash else low) + 1)
            found |= set(levels[: len(SEVERITIES) + 1]) or {0}  # cut short: a huge range is invalid anyway
    except ValueError:
        found = {0}
    if not found <= set(SEVERITIES):
        raise ValueError(f"Severities run from 1 to 5, such as 1-5 or 1,3,5, not {text!r}.")
    return tuple(sorted(found))


# The rows


@dataclass(frozen=True)
class Row:
    """The scores under one shift at one severity; clean images have severity 0."""

    shift: str
    severity: int
    at_mean: Scores
    under_draws: Scores | None = None
    """None without a posterior."""

    @property
    def key(self) -> tuple[str, int]:
        return self.shift, self.severity


def plan(shifts: Iterable[str], severities: Iterable[int]) -> list[tuple[str, int]]:
    """Return the (shift, severity) of each row of an evaluation, in order."""
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
    """Score a model on clean and shifted images, at μ and, if it has a posterior, under draws.

    A pure function of its arguments: the random numbers of a shift depend only on the seed, its name and the severity,
    not on the other rows.

    Args:
        predictor: a predictor of probabilities, or a network, which becomes a `Classifier` with the same seed.
        images: (N, C, H, W), uint8, or floats in [0, 1].
        labels: (N,).
        shifts: the shifts by name, such as `CORRUPTIONS` or `AUGMENTATIONS`; none by default.
        severities: the severities of each shift.
        samples: the number of draws.
        bins: the number of bins of the calibration errors; see `scores`.
        seed: the seed of the shifts.
        device: the device that shifts the images; by default the one they are on.
        known: rows already computed with the same settings; they are not computed again.
        report: called with each new row.
        observe: called before `report` with the row and its predictions: at μ and, with a posterior, under draws.

    Returns:
        All rows, known and new, in the order of `plan`.
    """
    predictor = Classifier(predictor, seed=seed) if isinstance(predictor, nn.Module) else predictor
    _check(images, labels, samples)
    for severity in severities:
        check_severity(severity)
    shifts, found = shifts or {}, {row.key: row for row in known}
    todo = [key for key in plan(shifts, severities) if key not in found]
    for name in {name for name, _ in todo} - {CLEAN}:
        shifts[name](_floats(images[:1]))  # fail early, on one image

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
    """Predict shifted images at μ and, with a posterior, under draws; each image is shifted only once."""
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
    """Yield the images as floats, chunk by chunk, shifted if a shift is given; reproducible from the seed."""
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
        raise ValueError(f"Images must be a tensor (N, C, H, W) with N > 0, not {got}.")
    if not isinstance(labels, Tensor) or labels.shape != images.shape[:1]:
        raise ValueError(f"An evaluation needs a label for each of its {len(images)} images.")
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ValueError(f"An evaluation needs at least one draw, not samples={samples!r}.")


# Summaries


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Return one row per shift, averaged over severities and marked severity 0; then their mean, called "mean"."""
    names = list(dict.fromkeys(row.shift for row in rows if row.shift != CLEAN))
    each = [_mean(name, [row for row in rows if row.shift == name]) for name in names]
    return [*each, _mean("mean", each)] if each else []


def _mean(name: str, rows: Sequence[Row]) -> Row:
    drawn = [row.under_draws for row in rows if row.under_draws is not None]
    return Row(name, 0, _average([row.at_mean for row in rows]), _average(drawn) if drawn else None)


def _average(parts: Sequence[Scores]) -> Scores:
    """Return the mean of each score; None if a row has no value."""
    average: Scores = {}
    for name in parts[0]:
        values = [part.get(name) for part in parts]  # rows of older files may lack a score
        known = [value for value in values if value is not None]
        average[name] = sum(known) / len(known) if len(known) == len(values) else None
    return average


def corruption_errors(rows: Sequence[Row], baseline: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Compute mCE and relative mCE of each reading of `rows`, in per cent of the baseline at μ.

    `CE` holds the errors by corruption. A ratio is None if it is undefined because a corruption does not harm the
    baseline; `note` then says why.
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
