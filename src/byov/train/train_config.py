"""How to train, a recipe's [train], and what becomes of a setting that a recipe leaves open.

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
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from PIL import Image

from byov.data import FolderSet, ImageSet
from byov.data.tables import Rows
from byov.models.registry import fitting_size
from byov.train.config import Count, Fraction, Multiple, NonNegative, Positive, Range, Rate, check

Precision = Literal["32-true", "bf16-mixed", "16-mixed", "64-true"]
Auto = Literal["auto"]
ON_GPU: tuple[bool, Precision] = (True, "bf16-mixed")
ON_CPU: tuple[bool, Precision] = (False, "32-true")
"""What `compile` and `precision` are, if they are left to the machine."""
STEPS = 1000
"""The least number of steps, where a recipe does not say how many epochs."""
LOOKED_AT = 500
"""Of how many files the size is read, at most."""
OPEN = {
    **dict.fromkeys(("train.compile", "train.precision", "train.batch", "train.epochs"), "auto"),
    "data.image_size": None,
}
"""What a recipe may leave open, and how it says so."""


@dataclass(frozen=True)
class TrainConfig:
    """How to train; a recipe's [train]. What is "auto" is fitted to the machine and the data."""

    usual_epochs: ClassVar[int] = 100
    usual_batch: ClassVar[int] = 256

    epochs: Count | Auto = "auto"
    """ "auto": 100, or as many more as 1,000 steps take."""
    batch: Count | Auto = "auto"
    """Images per optimizer step, over all processes and accumulated parts. "auto": 256, or of fewer than 512 images the
    largest power of two that fits into them twice."""
    optimizer: Literal["adamw", "adam", "sgd", "lars"] = "adamw"
    lr: Rate = 1e-3
    lr_batch: Count | None = None
    """The batch that `lr` is meant for; it is scaled linearly to `batch`. None: taken as it is."""
    log_var_lr: Multiple | None = None
    """The learning rate of a Gaussian's ρ = log σ², in units of `lr`. None: `byov.posterior.log_var_rate` of the run's
    steps, along the same schedule, whatever `lr` and `optimizer` are."""
    log_var_optimizer: Literal["same", "adam"] = "adam"
    """What moves ρ: Adam also beside `sgd` and `lars`, whose steps are too short for it; or the `optimizer` itself."""
    weight_decay: Multiple = 0.0
    decay: Literal["weights", "all"] = "weights"
    """What is decayed: weights, or biases and norms too, as by plain SGD; never ρ. `lars` decays weights only."""
    momentum: Fraction = 0.9
    nesterov: bool = False
    """Of `sgd`."""
    eta: Multiple = 1e-3
    warmup: NonNegative = 10.0
    """Epochs of linear warm-up before the cosine."""
    lr_end: Multiple = 0.0
    """Where the cosine ends, in units of `lr`; 1 keeps the rate constant after the warm-up."""
    clip: Positive | None = None
    accumulate: Count = 1
    precision: Precision | Auto = "auto"
    """ "auto": bf16-mixed on a CUDA GPU, else 32-true."""
    compile: bool | Auto = "auto"
    """ "auto": on a CUDA GPU."""
    cuda_graphs: bool = True
    """With `compile` on one GPU: launch each pass as one CUDA graph, where small networks are bound by the host."""
    seed: int = 0
    workers: Annotated[int, Range(0, 1024)] | None = None
    devices: Count | Literal["auto"] = "auto"
    accelerator: str = "auto"
    nodes: Count = 1
    log_every: Count = 20
    save_minutes: NonNegative = 5.0
    minutes: Positive | None = None
    """Stop cleanly after this long; the same command with --resume continues."""

    def __post_init__(self) -> None:
        check(self, "train")
        if self.decay == "all" and self.optimizer == "lars":
            raise ValueError("train.decay = 'all' is for sgd, adam and adamw: lars decays what it adapts.")
        if self.epochs != "auto" and self.warmup > self.epochs:
            raise ValueError(
                f"train.warmup={self.warmup:g} epochs do not fit into train.epochs={self.epochs}: say how many, as in"
                f" --set train.warmup={self.epochs / 10:g}."
            )

    @property
    def batch_size(self) -> int:
        """Return `batch`, or where it is still "auto" its usual size."""
        return self.usual_batch if self.batch == "auto" else self.batch

    @property
    def epoch_count(self) -> int:
        """Return `epochs`, or where they are still "auto" the usual number."""
        return self.usual_epochs if self.epochs == "auto" else self.epochs

    @property
    def sees_gpu(self) -> bool:
        """Tell whether a run will be on a CUDA GPU; no process is started to find out."""
        return self.accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()

    def on(self, gpu: bool) -> Self:
        """Return the configuration with what `compile` and `precision` are there.

        Compiled bf16 is a GPU's: a CPU takes minutes to compile it, and is slower with it. So there both are "auto".
        """
        own = self.compile, self.precision
        if own == ON_GPU and not gpu:
            own = ON_CPU
        compiled, precision = (
            usual if it == "auto" else it for it, usual in zip(own, ON_GPU if gpu else ON_CPU, strict=True)
        )
        return replace(self, compile=compiled, precision=precision)  # type: ignore[arg-type]


def fit_to_machine(train: TrainConfig) -> tuple[TrainConfig, str]:
    """Return the configuration on this machine, and a sentence on what that changed, or ""."""
    gpu = train.sees_gpu
    here = train.on(gpu)
    how = f"{here.precision}, {'compiled' if here.compile else 'not compiled'}"
    if (train.compile, train.precision) == ON_GPU and not gpu:
        return here, (
            f"train.compile=true with train.precision=bf16-mixed is for a GPU, and this run is on a CPU: it is {how}."
        )
    return here, f"On a {'GPU' if gpu else 'CPU'}: {how}." if here != train else ""


def fit_to_data(recipe: Any, data: ImageSet | FolderSet | Rows, parts: int) -> tuple[Any, Any, str]:
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
