"""The settings under which a run is read."""

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
    """How a run is read: under which draws, on which images, where and how precisely."""

    samples: int = 30
    strategy: Strategy = "loop"
    seed: int = 0
    """Of the draws, the probe, and what the limits take."""
    fit_samples: int = 8
    """Draws that a probe is fitted under."""
    batch_size: int = 512
    device: torch.device | str = "cpu"
    precision: Precision = "32-true"
    """Of the network; probes and probabilities are float32 either way."""
    temper: bool = False
    """Fit a temperature for a probe's probabilities."""
    network: Side = "student"
    """The network of a pretraining run that a probe is fitted on: the student, or the teacher, which has no draws."""
    tolerance: float | None = None
    """Of `byov.predict`; a probe has none."""
    data: str | None = None
    """The data set's name; None: the one that the run was made from."""
    split: str = "test"
    limit: int | None = None
    """Read this many images of the split, drawn at random; None: all."""
    train_limit: int | None = None
    """Fit a probe on this many training images."""
    root: str | Path | None = None
    """The folder of the data sets."""
    image_size: int | None = None
    """For a network of one's own: the size that images are brought to."""
    channels: int | None = None
    normalise: bool = False
    """For a network of one's own: standardise the images by the training split's moments."""
    trust: bool = False
    """Import the module that a checkpoint's recipe names, `python:module:function`. It runs whatever is in there."""

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
