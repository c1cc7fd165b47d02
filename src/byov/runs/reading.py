"""Settings for evaluating a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from byov.prediction.predict import Strategy
from byov.ssl.features import Side

Precision = Literal["32-true", "bf16-mixed"]


@dataclass(frozen=True)
class Reading:
    """How a run is evaluated: the draws, the images, the device and the precision."""

    samples: int = 30
    strategy: Strategy = "loop"
    seed: int = 0
    """For the draws, the probe, and the images selected by the limits."""
    fit_samples: int = 8
    """Number of draws for fitting a probe."""
    batch_size: int = 512
    device: torch.device | str = "cpu"
    precision: Precision = "32-true"
    """Precision of the network; probes and probabilities are always float32."""
    temper: bool = False
    """Fit a temperature for a probe's probabilities."""
    network: Side = "student"
    """The network of a pretraining run on which a probe is fitted: the student, or the teacher, which has no draws."""
    tolerance: float | None = None
    """As for `byov.predict`; not supported for a probe."""
    data: str | None = None
    """Name of the data set; None: the one on which the run was trained."""
    split: str = "test"
    limit: int | None = None
    """Use this many images of the split, selected at random; None: all."""
    train_limit: int | None = None
    """Fit a probe on this many training images."""
    root: str | Path | None = None
    """The folder of the data sets."""
    image_size: int | None = None
    """For your own network: the size to which images are resized."""
    channels: int | None = None
    normalise: bool = False
    """For your own network: standardise the images by the moments of the training split."""
    trust: bool = False
    """Allow importing the `python:module:function` named in a checkpoint's recipe. This executes its code."""

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise ValueError(f"A precision is {' or '.join(get_args(Precision))}, not {self.precision!r}.")
        if self.network not in get_args(Side):
            raise ValueError(f"A network is the student or the teacher, not {self.network!r}.")
        for name in ("samples", "fit_samples", "batch_size", "limit", "train_limit", "image_size", "channels"):
            if (value := getattr(self, name)) is not None and value < 1:
                least = "one image" if name.endswith("limit") else "1"
                raise ValueError(f"{name} is at least {least}, not {value}.")
        if self.strategy not in get_args(Strategy):
            raise ValueError(f"A strategy is auto, loop or vmap, not {self.strategy!r}.")
        if self.data is not None and not self.data.strip():
            raise ValueError(f"A data set has a name: --data NAME, not {self.data!r}.")
        if self.tolerance is not None and not self.tolerance > 0:
            raise ValueError(f"A tolerance is above 0, not {self.tolerance}.")

    @property
    def autocast(self) -> torch.dtype | None:
        return torch.bfloat16 if self.precision == "bf16-mixed" else None
