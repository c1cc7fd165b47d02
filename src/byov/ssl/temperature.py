"""The training examples that a probe's temperature is fitted on: each read by a head that has not seen it."""

from __future__ import annotations

import torch
from torch import Tensor

FOLDS = 5
"""Each is read by a head that was fitted on the others: with two, that head would have seen half of the examples, and
be more overconfident than the one that is used."""

EXAMPLES = 10_000
"""How many training examples the commands fit a temperature on, where there are as many."""


def folds(labels: Tensor, count: int, seed: int) -> Tensor:
    """Assign each example to a fold 0 … K−1 at random, each class alike in all; K is smaller where a class is."""
    from sklearn.model_selection import StratifiedKFold  # takes half a second to import

    classes = labels.cpu().numpy()
    found = torch.zeros(len(labels), dtype=torch.int64)
    count = min(count, int(labels.unique(return_counts=True)[1].min()))
    if count > 1:
        parts = StratifiedKFold(count, shuffle=True, random_state=seed % (1 << 32)).split(classes, classes)
        for fold, (_, held) in enumerate(parts):
            found[torch.from_numpy(held)] = fold
    return found
