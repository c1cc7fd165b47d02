"""Open a run of the command line in Python: its network, its classes and its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from byov.data import Batches, FolderSet, ImageSet
from byov.data.config import DataSpec
from byov.data.tables import features
from byov.device import choose_device
from byov.evaluation.predictions import find_images
from byov.evaluation.regressions import open_table, predicted
from byov.prediction import Prediction
from byov.runs import Reading, Run, open_run
from byov.runs.header import is_table
from byov.train.tabular import Regressor, Tabular


class Opened:
    """A run of `byov train` on images, or of `byov pretrain`; the latter predicts by a probe, fitted on first use.

    Attributes:
        run: the run, with its data, predictor and protocol.
        model: the network in eval mode, a BayesianModule if it has a posterior.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.model = run, run.network.eval()

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes."""
        if self.run.class_names is None:
            _ = self.run.predictor  # fitting it sets the names
        return self.run.class_names or ()

    @property
    def recipe(self) -> dict[str, Any] | None:
        """Return how to build the network, for `model.save_pretrained(…, recipe=run.recipe)`; None for a custom one."""
        about = {} if self.run.header is None else self.run.header.about
        name = about.get("config", {}).get("model", {}).get("name", "python:")
        if self.run.kind != "train" or name.startswith("python:"):
            return None
        channels, size = about["shape"]
        return {"byov": name, "classes": len(self.classes), "channels": channels, "image_size": size}

    def predict(self, x: Any, samples: int | None = None) -> Prediction:
        """Predict images under `samples` draws, by default those of the reading; at μ if 0 or without a posterior.

        `x` is one or more image files, a folder, a dataset or its name, or a tensor or array (N, C, H, W) of uint8, or
        of floats in [0, 1]. Every call uses the same draws.
        """
        count = self.run.reading.samples if samples is None else samples
        if count < 0:
            raise ValueError(f"samples is a number of draws, or 0 for μ, not {samples}.")
        return self.run.predictor(self._pixels(x), count if count and self.run.posterior else None)

    def _pixels(self, x: Any) -> Tensor:
        """Return images as floats in [0, 1]."""
        if isinstance(x, str | Path) or (isinstance(x, Sequence) and all(isinstance(i, str | Path) for i in x)):
            names = str(x) if isinstance(x, str | Path) else [str(name) for name in x]
            x, _ = find_images(names, None, self.run.reading.root, *self.run.shape)
        if isinstance(x, FolderSet):
            batches = Batches(x, 256, shuffle=False, drop_last=False)
            x = torch.cat([batch.images for batch in batches])
            if batches.unreadable:
                raise ValueError(batches.left_out())
        x = x.images if isinstance(x, ImageSet) else torch.from_numpy(x) if isinstance(x, np.ndarray) else x
        if not isinstance(x, Tensor) or x.ndim != 4:
            raise TypeError("predict takes image files, a folder, a dataset, or images (N, C, H, W).")
        return (x / 255 if x.dtype == torch.uint8 else x.float()).to(self.run.reading.device)


class OpenedTable:
    """A run of `byov train` on a table.

    Attributes:
        model: the network on standardised features and targets, a BayesianModule if it has a posterior.
        columns: the names of the features, if the table has them.
    """

    def __init__(self, module: Regressor, recipe: Tabular, like: DataSpec, reading: Reading) -> None:
        self.module, self.recipe, self.like, self.reading = module, recipe, like, reading
        self.model: nn.Module = module.net.eval()
        self.columns = like.columns

    def predict(self, x: Any, samples: int | None = None) -> Prediction:
        """Predict rows (N, D), or those of a file, in original units; `std` includes noise, `epistemic` does not."""
        if isinstance(x, str | Path):
            x = features(str(x), self.like.channels, self.recipe.data.column, self.like.columns, self.like.target)
        count = self.reading.samples if samples is None else samples
        found = predicted(self.module, self.like, torch.as_tensor(x), count or None, self.reading.seed)
        return Prediction(
            mean=found.mean,
            std=found.std,
            entropy=None,
            expected_entropy=None,
            mutual_information=None,
            samples=len(found.draws),
            strategy="loop",
            task="regression",
            aleatoric=(1.0 / found.precision).expand_as(found.mean),
            epistemic=found.spread.square(),
        )


def open(path: str | Path, device: str = "auto", trust: bool = False, **reading: Any) -> Opened | OpenedTable:
    """Open a run of `byov train` or `byov pretrain`.

    Args:
        path: the run's folder, or its checkpoint.
        device: "auto" uses a GPU if there is one.
        trust: allow importing the code that the run's recipe names as `python:module:function`.
        reading: other arguments of `byov.runs.Reading`, such as samples, seed or root.

    Example:
        run = byov.open("runs/bbb")
        run.predict("picture.jpg").mean, run.classes
    """
    place = choose_device(device)
    settings = Reading(device=place, trust=trust, **reading)
    if is_table(str(path)):
        return OpenedTable(*open_table(path, place, trust), settings)
    return Opened(open_run(path, settings))
