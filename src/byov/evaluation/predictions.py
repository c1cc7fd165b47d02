"""Predictions for each input with their uncertainty, as columns and as a CSV or NPZ file."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byov.data import Batches, FolderSet, ImageSet
from byov.data.labelled import sized
from byov.data.printable import printable, reason
from byov.data.sources import SPLIT_FOLDERS, is_picture, pictures
from byov.evaluation.rows import which_images
from byov.files import check_out, replacing
from byov.prediction import Prediction
from byov.runs import Run
from byov.ssl.linear_evaluation import Advance

NUMBERS = ("confidence", "std", "entropy", "expected_entropy", "mutual_information")


@dataclass(frozen=True, eq=False)
class Predictions:
    """Columns of equal length, with one entry per input."""

    inputs: list[str]
    """The file name relative to its folder, or the index of the image."""
    probabilities: np.ndarray
    """(N, C)."""
    spread: np.ndarray
    """(N, C): the standard deviation of each probability over draws."""
    columns: dict[str, np.ndarray]
    """`predicted` (the index of the class), `NUMBERS`, and `draws`."""
    class_names: tuple[str, ...]
    labels: np.ndarray | None = None
    unreadable: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Files that could not be read: the name and the reason, by position among the inputs."""

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def accuracy(self) -> float | None:
        """Return the share of correct predictions; None without labels."""
        return None if self.labels is None else float((self.columns["predicted"] == self.labels).mean())

    def most_uncertain(self, count: int = 10) -> list[int]:
        """Return the indices of the inputs with the largest entropy, most uncertain first."""
        return np.argsort(-self.columns["entropy"], kind="stable")[:count].tolist()


def check_file(path: Path, force: bool) -> None:
    """Raise if predictions cannot be written to this file."""
    if path.suffix not in (".csv", ".npz"):
        kind = path.suffix or "a file without a suffix"
        raise ValueError(f"Predictions are written as .csv or .npz, not as {kind}.")
    check_out(path, force)


def find_images(
    data: str | Sequence[str],
    split: str | None,
    root: str | Path | None,
    channels: int | None,
    image_size: int | None,
    native: bool = False,
) -> tuple[ImageSet | FolderSet, Path | None]:
    """Load images, with or without labels; also return the folder that their file names are relative to.

    `data` is a folder, an .npz file, the name of a dataset, or one or more image files.
    """
    several = [data] if isinstance(data, str) else list(data)
    if several and all(map(is_picture, several)):
        if split is not None:
            raise ValueError("Image files have no splits: leave out --split.")
        return pictures(several, image_size, channels or 3), None
    if len(several) != 1:
        other = next((name for name in several if not is_picture(name)), "nothing")
        raise ValueError(f"Give several image files, or a single folder, file or dataset: {other} is not an image.")
    data = several[0]
    path = Path(data.removeprefix("folder:")).expanduser()
    if data.startswith("folder:") or (path.is_dir() and ":" not in data):
        splits = any((path / part).is_dir() for parts in SPLIT_FOLDERS.values() for part in parts)
        split = split or ("test" if splits else "train")
        return sized(f"folder:{path}", split, None, channels, image_size, native), path
    name = f"npz:{data}" if data.endswith(".npz") and not data.startswith("npz:") else data
    return sized(name, split or "test", root, channels, image_size, native), None


def predict_all(
    run: Run,
    data: ImageSet | FolderSet,
    root: Path | None = None,
    advance: Advance = lambda *_: None,
) -> Predictions:
    """Predict every image of a dataset in batches, under draws if there is a posterior, otherwise at μ.

    Files of a folder that cannot be read are left out and listed; names are relative to `root`. `advance` is called
    with the current step, the number of images done, and their total.
    """
    samples = run.reading.samples if run.posterior else None
    rows: list[dict[str, np.ndarray]] = []
    indices: list[int] = []
    batches = Batches(data, run.reading.batch_size, shuffle=False, drop_last=False, tolerated=1.0)
    for batch in batches:
        if not rows and run.kind == "pretrain":
            advance("fitting the probe", 0, len(data))
            _ = run.predictor  # fitted on first use
        advance("predicting", len(indices), len(data))
        rows.append(_columns(_predicted(run, batch.images.float() / 255, samples)))
        indices += batch.indices.tolist()
        advance("predicting", len(indices), len(data))
    if not rows:
        first, why = _name(data, 0, root), batches.unreadable[0]
        raise ValueError(f"None of the {len(data)} images of {data.name} can be read; the first is {first}: {why}.")
    columns = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    probabilities, spread = columns.pop("probabilities"), columns.pop("spread")
    classes = probabilities.shape[1]
    names = tuple(run.class_names or data.class_names)
    names = names if len(names) == classes else tuple(map(str, range(classes)))
    same = tuple(data.class_names) == names  # otherwise its labels index other classes
    labels = data.labels.cpu().numpy()[indices] if same and data.labels is not None else None
    inputs = [_name(data, i, root) for i in indices]
    unreadable = {i: (_name(data, i, root), why) for i, why in sorted(batches.unreadable.items())}
    return Predictions(inputs, probabilities, spread, columns, names, labels, unreadable)


def _columns(prediction: Prediction) -> dict[str, np.ndarray]:
    """Return the columns of `Predictions` for a batch, with "probabilities" and "spread"."""
    if not bool(prediction.mean.isfinite().all()):
        raise ValueError("The model's probabilities are not finite for some images.")
    confidence, predicted = prediction.mean.max(1)
    used = prediction.samples
    draws = used.cpu().numpy() if isinstance(used, Tensor) else np.full(len(predicted), used)
    found = {
        "probabilities": prediction.mean,
        "spread": prediction.std,
        "predicted": predicted,
        "confidence": confidence,
        "std": prediction.std.gather(1, predicted[:, None])[:, 0],
        **{name: getattr(prediction, name) for name in NUMBERS[2:]},
    }
    return {**{name: values.cpu().numpy() for name, values in found.items()}, "draws": draws}


def _predicted(run: Run, images: Tensor, samples: int | None) -> Prediction:
    try:
        return run.predictor(images, samples)
    except (RuntimeError, AssertionError, IndexError) as error:
        shape = "×".join(map(str, images.shape[1:]))
        raise ValueError(f"The network cannot take images of {shape}: {reason(error)}") from error


def _name(data: ImageSet | FolderSet, index: int, root: Path | None) -> str:
    """Return a file's name relative to `root`, or the index of an image in memory."""
    if isinstance(data, ImageSet):
        return str(index)
    return printable(data.paths[index] if root is None else os.path.relpath(data.paths[index], root))


def prediction_protocol(run: Run, data: ImageSet | FolderSet) -> dict[str, Any]:
    """Return the settings that the predictions depend on."""
    r = run.reading
    return {
        "model": {"name": run.name, "kind": run.kind, "digest": run.digest, "posterior": run.posterior},
        "data": which_images(data),
        "samples": r.samples,
        "tolerance": r.tolerance,
        "strategy": r.strategy,
        "seed": r.seed,
        "fit_samples": r.fit_samples if run.kind == "pretrain" else None,
        "temper": r.temper,
        "device": torch.device(r.device).type,
    }


def write(found: Predictions, path: Path, protocol: dict[str, Any]) -> None:
    """Write a .csv with a row per input, or an .npz that also holds all probabilities and the protocol.

    The file is written completely or not at all. An input that could not be read has a row in the .csv that holds only
    its name; the .npz lists such names under "unreadable".
    """
    with replacing(path) as fresh:
        if path.suffix == ".csv":
            with fresh.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(_lines(found))
            return
        arrays: dict[str, Any] = {
            "input": np.array(found.inputs),
            "probabilities": found.probabilities,
            "probabilities_std": found.spread,
            "class_names": np.array(found.class_names),
            "protocol": np.array(json.dumps(protocol, ensure_ascii=False)),
            **found.columns,
        }
        if found.labels is not None:
            arrays["label"] = found.labels
        if found.unreadable:
            arrays["unreadable"] = np.array([name for name, _ in found.unreadable.values()])
        np.savez_compressed(fresh, **arrays)


def _lines(found: Predictions) -> list[list[str]]:
    """Return the header and the rows; unreadable files keep their position."""
    lines = []
    for i, name in enumerate(found.inputs):
        truth = [] if found.labels is None else [found.class_names[found.labels[i]]]
        numbers = [f"{found.columns[column][i]:.7g}" for column in NUMBERS]
        predicted = found.class_names[found.columns["predicted"][i]]
        lines.append([name, *truth, predicted, *numbers, str(found.columns["draws"][i])])
    header = ["input", *([] if found.labels is None else ["label"]), "predicted", *NUMBERS, "draws"]
    for place, (name, _) in sorted(found.unreadable.items()):
        lines.insert(place, [name, *[""] * (len(header) - 1)])
    return [header, *lines]
