"""Sections made from per-image records: reliability diagrams, selective risk, entropies and the image gallery."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from byov.data import ImageSet
from byov.evaluation.gallery import Shown, confident_mistakes, show
from byov.metrics.functional.calibration import bin_sums, diagram_of_bins, equal_width, error_of_bins
from byov.metrics.functional.uncertainty import curve_of_errors
from byov.prediction import Prediction
from byov.report.drawing import data_uri
from byov.report.groups import Group, each_reading
from byov.report.intervals import wilson
from byov.report.sources import evenly_spaced

ENTROPY_BINS = 24
Record = dict[str, Any]
"""One run on the images under one shift: `confidence`, `correct` and, except in older files, `entropy`."""


def by_condition(groups: Sequence[Group]) -> list[tuple[str, str, list[Record]]]:
    """Return the records by condition and series, pooling all runs of a group and all shifts."""
    found = []
    for where in ("clean", "shifted"):
        for name, group, reading in each_reading(groups):
            rows = [row for run in group.runs for row in run.records(reading, where == "clean")]
            found += [(where, name, rows)] if rows else []
    return found


def calibration(groups: Sequence[Group]) -> dict[str, Any]:
    """Return reliability diagrams of clean images and of all shifted images."""
    found: dict[str, Any] = {}
    for where, name, rows in by_condition(groups):
        found.setdefault(where, {})[name] = diagram(rows)
    return found


def diagram(rows: Sequence[dict[str, Any]], bins: int = 15) -> dict[str, Any]:
    """Return count, mean confidence, and accuracy with its 95 % Wilson interval, for each bin that is not empty."""
    confidence, correct = joined(rows, "confidence").float(), joined(rows, "correct").bool()
    sums = bin_sums(confidence, correct, equal_width(confidence, bins), bins)
    found = diagram_of_bins(sums)
    points = []
    columns = (found.count.long().tolist(), found.confidence.tolist(), found.accuracy.tolist())
    for count, sure, accuracy in zip(*columns, strict=True):
        if count:
            low, high = wilson(accuracy, count)
            points.append({"count": count, "confidence": sure, "accuracy": accuracy, "low": low, "high": high})
    return {"bins": bins, "images": len(confidence), "ece": error_of_bins(sums, "l1").item(), "points": points}


def joined(rows: Sequence[Record], what: str) -> Tensor:
    """Concatenate one quantity over the images of all rows."""
    return torch.tensor([value for row in rows for value in row[what]], dtype=torch.float64)


def risk(groups: Sequence[Group]) -> dict[str, Any]:
    """Return thinned risk-coverage curves: the error rate among the images that a model is most confident about."""
    found: dict[str, Any] = {}
    for where, name, rows in by_condition(groups):
        curve = curve_of_errors(1 - joined(rows, "confidence"), 1 - joined(rows, "correct"))
        pairs = zip(curve.coverage.tolist(), curve.risk.tolist(), strict=True)
        points = [[round(coverage, 5), round(value, 5)] for coverage, value in evenly_spaced(list(pairs), 80)]
        found.setdefault(where, {})[name] = {"points": points, "aurc": curve.risk.mean().item()}
    return found


def entropy(groups: Sequence[Group]) -> dict[str, Any]:
    """Return histograms of entropy on clean and on shifted images, for each model's best reading."""
    own = {f"{i}/{group.best}" for i, group in enumerate(groups)}
    values = {
        (where, name): joined(rows, "entropy")
        for where, name, rows in by_condition(groups)
        if name in own and all("entropy" in row for row in rows)
    }
    if not values:
        return {}
    top = max(max(found.max().item() for found in values.values()), 1e-3)
    shares: dict[str, dict[str, list[float]]] = {}
    for (where, name), found in values.items():
        counts = torch.histc(found, ENTROPY_BINS, 0, top)
        shares.setdefault(name, {})[where] = [round(share, 5) for share in (counts / len(found)).tolist()]
    return {"width": top / ENTROPY_BINS, "shares": shares}


def gallery_entries(data: ImageSet, prediction: Prediction, count: int = 12) -> dict[str, Any]:
    """Return the `count` images of least and most entropy, and the most confident mistakes, as inline images."""
    assert data.labels is not None
    assert prediction.entropy is not None
    assert prediction.mutual_information is not None
    probs, labels, entropy = prediction.mean.cpu(), data.labels.cpu(), prediction.entropy.cpu()
    information = prediction.mutual_information.cpu()
    order, mistakes = entropy.argsort(stable=True), confident_mistakes(probs, labels)

    def entry(shown: Shown) -> dict[str, Any]:
        i = shown.index
        numbers = {"confidence": probs[i].max(), "entropy": entropy[i], "mutual_information": information[i]}
        return {
            "index": i,
            "label": shown.label,
            "predicted": shown.predicted,
            "correct": shown.label == shown.predicted,
            **{name: round(float(value), 4) for name, value in numbers.items()},
            "image": data_uri(shown.array()),
        }

    found: dict[str, Any] = {}
    for name, places in (("certain", order), ("uncertain", order.flip(0)), ("mistakes", mistakes)):
        shown = show(data.images, labels, data.class_names, probs, entropy, places[:count])
        found[name] = [entry(each) for each in shown]
    return {**found, "wrong": len(mistakes), "images": len(data)}
