"""Inputs with their labels, from whatever a user keeps them in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from byov.prediction.inputs import LABELS, Takes, batches_of, first_of


def labelled(loader: Any, net: nn.Module) -> Iterator[tuple[Any, Tensor]]:
    """Yield inputs and labels: of a loader or data set of (x, y), of mappings with "labels", or of one pair (x, y)."""
    if isinstance(loader, Tensor | Mapping | np.ndarray) or (isinstance(loader, tuple) and len(loader) == 2):
        loader = [loader]
    _, batches = batches_of(loader, net)
    takes, found = Takes.of(net), False
    for batch in batches:
        found = True
        x = first_of(_without_labels(batch), takes)
        yield x, _labels_of(batch, len(x) if isinstance(x, tuple) and isinstance(batch[0], Tensor) else 1)
    if not found:
        raise ValueError("The loader is empty: there is nothing to fit on.")


def _labels_of(batch: Any, after: int) -> Tensor:
    """Return the labels, in a tuple what comes after the inputs."""
    y = None
    if isinstance(batch, Mapping):
        y = next((batch[name] for name in LABELS if name in batch), None)
    elif isinstance(batch, tuple | list) and len(batch) > after:
        y = batch[after]
    if not isinstance(y, Tensor | np.ndarray | list):
        raise ValueError("The labels are needed, too: give a loader of (x, y) pairs, or of mappings with 'labels'.")
    return torch.as_tensor(y)


def _without_labels(batch: Any) -> Any:
    return {k: v for k, v in batch.items() if k not in LABELS} if isinstance(batch, Mapping) else batch


def class_numbers(labels: Tensor, classes: int) -> Tensor:
    """Return the labels as whole numbers, or refuse what is no class of so many; negative ones are to be ignored."""
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        raise ValueError("The labels of a classification are the classes' numbers, not fractions.")
    labels = labels.long()
    if labels.numel() and int(labels.max()) >= classes:
        raise ValueError(
            f"The label {int(labels.max())} is none of the network's {classes} classes, 0 to {classes - 1}."
        )
    return labels
