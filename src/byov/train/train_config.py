"""How to train: a recipe's [train], and how settings that a recipe leaves open are resolved.

| open | resolved to |
|---|---|
| `train.compile`, `train.precision` = "auto" | on a CUDA GPU compiled bf16-mixed, otherwise 32-true and not compiled |
| `train.batch` = "auto" | 256; for fewer than 512 images the largest power of two that fits into them twice |
| `train.epochs` = "auto" | 100, or more if needed for 1,000 steps |
| `train.lr_end` = "auto" | 0, or 1 for SWAG |
| `data.image_size` = none, of a folder | the median of the files' shorter sides, adapted to the network; at most 224 |

A resumed run keeps the settings with which it was started.
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
"""`compile` and `precision` if they are "auto"."""
STEPS = 1000
"""Minimum number of steps if a recipe does not set the epochs."""
LOOKED_AT = 500
"""Maximum number of files whose size is read."""
AUTO_SETTINGS = {
    **dict.fromkeys(("train.compile", "train.precision", "train.batch", "train.epochs", "train.lr_end"), "auto"),
    "data.image_size": None,
}
"""Settings that a recipe may leave open, with the value that means so."""


@dataclass(frozen=True)
class TrainConfig:
    """How to train: a recipe's [train]. Settings that are "auto" are fitted to the machine and the data."""

    usual_epochs: ClassVar[int] = 100
    usual_batch: ClassVar[int] = 256

    epochs: Count | Auto = "auto"
    """ "auto": 100, or more if needed for 1,000 steps."""
    batch: Count | Auto = "auto"
    """Images per optimizer step, over all processes and accumulated parts. "auto": 256, or for fewer than 512 images
    the largest power of two that fits into them twice."""
    optimizer: Literal["adamw", "adam", "sgd", "lars"] = "adamw"
    lr: Rate = 1e-3
    lr_batch: Count | None = None
    """The batch size for which `lr` is meant; `lr` is scaled linearly to `batch`. None: no scaling."""
    log_var_lr: Multiple | None = None
    """The learning rate of a Gaussian's ρ = log σ², in units of `lr`. None: `byov.posterior.log_var_rate` for the
    run's number of steps, with the same schedule, whatever `lr` and `optimizer` are."""
    log_var_optimizer: Literal["same", "adam"] = "adam"
    """The optimizer of ρ: Adam even with `sgd` and `lars`, whose steps are too small for it; or `optimizer` itself."""
    weight_decay: Multiple = 0.0
    decay: Literal["weights", "all"] = "weights"
    """What is decayed: weights, or biases and norms too, as in plain SGD; never ρ. `lars` decays weights only."""
    momentum: Fraction = 0.9
    nesterov: bool = False
    """For `sgd`."""
    eta: Multiple = 1e-3
    warmup: NonNegative = 10.0
    """Epochs of linear warm-up before the cosine schedule."""
    lr_end: Multiple | Auto = "auto"
    """Final value of the cosine schedule, in units of `lr`; 1 keeps the rate constant after the warm-up. "auto": 0, or
    1 for SWAG, which needs weights that keep moving."""
    clip: Positive | None = None
    accumulate: Count = 1
    precision: Precision | Auto = "auto"
    """ "auto": bf16-mixed on a CUDA GPU, otherwise 32-true."""
    compile: bool | Auto = "auto"
    """ "auto": only on a CUDA GPU."""
    cuda_graphs: bool = True
    """With `compile` on one GPU: launch each pass as one CUDA graph, since small networks are bound by the host."""
    seed: int = 0
    workers: Annotated[int, Range(0, 1024)] | None = None
    devices: Count | Literal["auto"] = "auto"
    accelerator: str = "auto"
    nodes: Count = 1
    log_every: Count = 20
    save_minutes: NonNegative = 5.0
    minutes: Positive | None = None
    """Stop cleanly after this time; the same command with --resume continues."""

    def __post_init__(self) -> None:
        check(self, "train")
        if self.decay == "all" and self.optimizer == "lars":
            raise ValueError("train.decay = 'all' is for sgd, adam and adamw: lars decays what it adapts.")
        if self.epochs != "auto" and self.warmup > self.epochs:
            raise ValueError(
                f"train.warmup={self.warmup:g} epochs do not fit into train.epochs={self.epochs}: choose fewer, as in"
                f" --set train.warmup={self.epochs / 10:g}."
            )

    @property
    def batch_size(self) -> int:
        """Return `batch`, or its usual value if it is still "auto"."""
        return self.usual_batch if self.batch == "auto" else self.batch

    @property
    def epoch_count(self) -> int:
        """Return `epochs`, or the usual value if it is still "auto"."""
        return self.usual_epochs if self.epochs == "auto" else self.epochs

    @property
    def sees_gpu(self) -> bool:
        """Return True if a run will use a CUDA GPU, without launching Fabric."""
        return self.accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()

    def on(self, gpu: bool) -> Self:
        """Return the configuration with `compile` and `precision` resolved, for a GPU or a CPU.

        Compiled bf16 is for a GPU: a CPU takes minutes to compile it, and is slower with it. There it counts as "auto".
        """
        own = self.compile, self.precision
        if own == ON_GPU and not gpu:
            own = ON_CPU
        compiled, precision = (
            usual if it == "auto" else it for it, usual in zip(own, ON_GPU if gpu else ON_CPU, strict=True)
        )
        return replace(self, compile=compiled, precision=precision)  # type: ignore[arg-type]


def fit_to_machine(train: TrainConfig) -> tuple[TrainConfig, str]:
    """Return the configuration for this machine, and a sentence on what changed, or ""."""
    gpu = train.sees_gpu
    here = train.on(gpu)
    how = f"{here.precision}, {'compiled' if here.compile else 'not compiled'}"
    if (train.compile, train.precision) == ON_GPU and not gpu:
        return here, (
            f"train.compile=true with train.precision=bf16-mixed is for a GPU, and this run is on a CPU: it is {how}."
        )
    return here, f"On a {'GPU' if gpu else 'CPU'}: {how}." if here != train else ""


def fit_to_data(recipe: Any, data: ImageSet | FolderSet | Rows, parts: int) -> tuple[Any, Any, str]:
    """Fit a recipe to its data; return the recipe, the data, and a sentence on unusual values, or "".

    A batch is divided among `parts`: processes times accumulated parts.
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
    """Return the usual batch; if there are fewer images than two such batches, a power of two per part."""
    if images >= 2 * usual:
        return usual
    share = images // (2 * parts)
    return max(2, parts * (1 << max(share.bit_length() - 1, 0)))


def shorter_side(paths: Sequence[str]) -> int:
    """Return the median of the pictures' shorter sides, of at most 500 of them; 224 if none can be read."""
    sides = []
    for path in paths[:: -(-len(paths) // LOOKED_AT)]:
        with suppress(Exception), Image.open(path) as file:  # broken files are reported when they are loaded
            sides.append(min(file.size))
    return round(median(sides)) if sides else 224


def as_started(recipe: Any, config: dict[str, Any]) -> Any:
    """Return the recipe with its open settings taken from the config with which a run was started."""
    for key, left_open in AUTO_SETTINGS.items():
        table, name = key.split(".")
        part = getattr(recipe, table)
        if getattr(part, name, ...) == left_open and name in config.get(table, {}):
            recipe = replace(recipe, **{table: replace(part, **{name: config[table][name]})})
    return recipe
