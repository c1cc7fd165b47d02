"""Fit what a recipe leaves open to the machine and the data; what a recipe says itself stays.

| open | what it becomes |
|---|---|
| `train.compile`, `train.precision` = "auto" | on a CUDA GPU compiled bf16-mixed, else 32-true and not compiled |
| `train.batch` = "auto" | 256; of fewer than 512 images the largest power of two that fits into them twice |
| `train.epochs` = "auto" | 100, or as many more as 1,000 steps take |
| `data.image_size` = none, of a folder | the median of the files' shorter sides, as the network takes it; at most 224 |

A run that is resumed keeps what it was started with.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Any

from PIL import Image

from byov.data import FolderSet, ImageSet
from byov.data.tables import Rows
from byov.models.registry import fitting_size
from byov.train.fabric import sees_gpu
from byov.train.train_config import ON_GPU, TrainConfig

STEPS = 1000
"""The least number of steps, where a recipe does not say how many epochs."""
LOOKED_AT = 500
"""Of how many files the size is read, at most."""
OPEN = {
    **dict.fromkeys(("train.compile", "train.precision", "train.batch", "train.epochs"), "auto"),
    "data.image_size": None,
}
"""What a recipe may leave open, and how it says so."""


def to_machine(train: TrainConfig) -> tuple[TrainConfig, str]:
    """Return the configuration on this machine, and a sentence on what that changed, or ""."""
    gpu = sees_gpu(train)
    here = train.on(gpu)
    how = f"{here.precision}, {'compiled' if here.compile else 'not compiled'}"
    if (train.compile, train.precision) == ON_GPU and not gpu:
        return here, (
            f"train.compile=true with train.precision=bf16-mixed is for a GPU, and this run is on a CPU: it is {how}."
        )
    return here, f"On a {'GPU' if gpu else 'CPU'}: {how}." if here != train else ""


def to_data(recipe: Any, data: ImageSet | FolderSet | Rows, parts: int) -> tuple[Any, Any, str]:
    """Return the recipe and its images with sizes that fit, and a sentence on what is not as usual, or "".

    A batch is shared by `parts`: processes times accumulated parts.
    """
    train, said = recipe.train, []
    if isinstance(data, FolderSet) and data.name.startswith("folder:") and recipe.data.image_size is None:
        network = getattr(recipe.model, "encoder", None) or recipe.model.name
        data = data.resized(fitting_size(network, shorter_side(data.paths)))
        recipe = replace(recipe, data=replace(recipe.data, image_size=data.image_size))
        said.append(f"pictures of {data.image_size} × {data.image_size} pixels")
    batch = fitting_batch(len(data), train.usual_batch, parts) if train.batch == "auto" else train.batch
    steps = max(1, len(data) // batch)
    epochs = max(train.usual_epochs, -(-STEPS // steps)) if train.epochs == "auto" else train.epochs
    if train.batch == "auto" and batch != train.usual_batch:
        said.append(f"batches of {batch}")
    if train.epochs == "auto" and epochs != train.usual_epochs:
        said.append(f"{epochs} epochs")
    recipe = replace(recipe, train=replace(train, batch=batch, epochs=epochs))
    return recipe, data, f"{data.name} has {len(data):,} images: {', '.join(said)}." if said else ""


def fitting_batch(images: int, usual: int, parts: int = 1) -> int:
    """Return the usual batch, or of fewer images than two of them a power of two for each of its parts."""
    if images >= 2 * usual:
        return usual
    share = images // (2 * parts)
    return max(2, parts * (1 << max(share.bit_length() - 1, 0)))


def shorter_side(paths: Sequence[str]) -> int:
    """Return the median of the pictures' shorter sides, of at most 500 of them; 224 if none can be read."""
    sides = []
    for path in paths[:: -(-len(paths) // LOOKED_AT)]:
        with suppress(Exception), Image.open(path) as file:  # a broken file is told when its turn comes
            sides.append(min(file.size))
    return round(median(sides)) if sides else 224


def as_started(recipe: Any, config: dict[str, Any]) -> Any:
    """Return the recipe with what it leaves open as a run was started with it."""
    for key, left_open in OPEN.items():
        table, name = key.split(".")
        part = getattr(recipe, table)
        if getattr(part, name, ...) == left_open and name in config.get(table, {}):
            recipe = replace(recipe, **{table: replace(part, **{name: config[table][name]})})
    return recipe
