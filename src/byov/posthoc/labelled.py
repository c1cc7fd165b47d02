"""Inputs with their labels, from loaders, data sets, mappings or pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from byov.prediction.inputs import LABELS, InputSpec, batches_of, inputs_from_batch
from byov.prediction.outputs import OutputSpec, Task

IGNORED = -100
"""The label of a token or a pixel that does not count, torch's default."""


def labelled(loader: Any, net: nn.Module) -> Iterator[tuple[Any, Tensor]]:
    """Yield inputs and labels from a loader or data set of (x, y), from mappings with "labels", or from one (x, y)."""
    if isinstance(loader, Tensor | Mapping | np.ndarray) or (isinstance(loader, tuple) and len(loader) == 2):
        loader = [loader]
    _, batches = batches_of(loader, net)
    takes, found = InputSpec.of(net), False
    for batch in batches:
        found = True
        x = inputs_from_batch(_without_labels(batch), takes)
        y = labels_of(batch, x)
        if not isinstance(y, Tensor | np.ndarray | list):
            raise ValueError("Labels are needed, too: pass a loader of (x, y) pairs, or of mappings with 'labels'.")
        yield x, torch.as_tensor(y)
    if not found:
        raise ValueError("The loader is empty: there is nothing to fit on.")


def labels_of(batch: Any, x: Any) -> Any:
    """Return the labels of a batch with inputs `x`, in a tuple the element after these; None if there are none."""
    if isinstance(batch, Mapping):
        return next((batch[name] for name in LABELS if name in batch), None)
    after = len(x) if isinstance(x, tuple) and not isinstance(batch[0], tuple | list) else 1
    return batch[after] if isinstance(batch, tuple | list) and len(batch) > after else None


def align_labels(labels: Tensor, reading: OutputSpec) -> Tensor:
    """Align labels with the outputs that predict them: a causal language model predicts the next token.

    Such a network is recognised by the type of its output, so it must have been called before.
    """
    return pad(labels[:, 1:], (0, 1), value=IGNORED) if reading.causal and labels.ndim > 1 else labels


def _without_labels(batch: Any) -> Any:
    return {k: v for k, v in batch.items() if k not in LABELS} if isinstance(batch, Mapping) else batch


def task_of(outputs: Tensor, labels: Tensor) -> Task:
    """Decide the task from the outputs and labels of a batch; raise if it is ambiguous."""
    shape, of = tuple(outputs.shape), tuple(labels.shape)
    whole = not labels.is_floating_point()
    binary = bool(((labels == 0) | (labels == 1)).all())
    places = [task for task, found in (("token", shape[:-1]), ("segmentation", shape[:1] + shape[2:])) if of == found]
    single = len(shape) == 1 or shape[1:] == (1,)
    beyond = bool(((labels != 0) & (labels != 1) & (labels != IGNORED)).any())
    if single and whole and beyond and outputs.numel() == labels.numel():
        raise ValueError(
            "The network has one output, but the labels are integers other than 0 and 1: add task='regression' if they"
            " are quantities."
        )
    if whole and len(shape) == 2 and places:
        return "classification"
    if whole and len(shape) > 2 and len(places) == 1:
        return "token" if places == ["token"] else "segmentation"
    if single and outputs.numel() == labels.numel() and not binary and not whole:
        return "regression"
    if whole and binary and single and outputs.numel() == labels.numel():
        return "classification"
    if of == shape and not single:
        return "multilabel" if binary and len(shape) == 2 else "regression"
    raise ValueError(
        f"Outputs {shape} and labels {of} of {labels.dtype} fit several tasks, or none: add task= or loss=."
    )


def class_numbers(labels: Tensor, classes: int) -> Tensor:
    """Return the labels as integers; raise if one is not below `classes`. Negative labels are to be ignored."""
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        raise ValueError("The labels of a classification are class indices, not fractions.")
    labels = labels.long()
    if labels.numel() and int(labels.max()) >= classes:
        raise ValueError(
            f"The label {int(labels.max())} is not one of the network's {classes} classes, 0 to {classes - 1}."
        )
    return labels
