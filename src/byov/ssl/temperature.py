"""A temperature for class probabilities, also for averages over draws: p ∝ p̄^(1/T).

An average of many draws is more often right than it says, also where the head was fitted to averages of as many. One
number, chosen by likelihood, takes that back where it is the same for all images; of what draws add under shift it
takes a part, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

RANGE = 4.0
"""T lies between 1/4 and 4: a few images that are all right, or all wrong, would ask for 0 or infinity."""

FOLDS = 5
"""Each is read by a head that was fitted on the others: of two, that head would be of half of the examples, and more
overconfident than the one that is used."""

EXAMPLES = 10_000
"""How many training examples it is fitted on, where there are as many."""


def tempered(probs: Tensor, temperature: float) -> Tensor:
    """p^(1/T), normalised over the last dimension."""
    return (_logs(probs) / temperature).softmax(-1)


def fit_temperature(probs: Tensor, labels: Tensor) -> float:
    """The T under which the labels (N,) are most likely, given probabilities (N, C).

    In 1/T the negative log-likelihood is convex; its slope is E[Σ p log p̄] − E[log p̄_y], and changes sign once.
    """
    if probs.ndim != 2 or labels.shape != probs.shape[:1] or not len(labels):
        raise ValueError(f"A temperature needs probabilities (N, C) and labels (N,), not {tuple(probs.shape)}.")
    logs = _logs(probs).double()  # as `tempered` will have them: a zero is the smallest number of the dtype
    truth = logs.gather(1, labels.to(logs.device, torch.int64)[:, None]).mean()
    low, high = 1 / RANGE, RANGE
    for _ in range(50):
        middle = (low * high) ** 0.5
        slope = ((middle * logs).softmax(1) * logs).sum(1).mean() - truth
        low, high = (middle, high) if slope < 0 else (low, middle)
    return 1 / middle


def folds(labels: Tensor, count: int, seed: int) -> Tensor:
    """A fold 0 … K−1 for each example, at random and each class alike in all; K is smaller where a class is."""
    from sklearn.model_selection import StratifiedKFold  # takes half a second to import

    classes = labels.cpu().numpy()
    found = torch.zeros(len(labels), dtype=torch.int64)
    count = min(count, int(labels.unique(return_counts=True)[1].min()))
    if count > 1:
        parts = StratifiedKFold(count, shuffle=True, random_state=seed % (1 << 32)).split(classes, classes)
        for fold, (_, held) in enumerate(parts):
            found[torch.from_numpy(held)] = fold
    return found


def _logs(probs: Tensor) -> Tensor:
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
