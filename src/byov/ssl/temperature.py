"""A temperature for class probabilities, also for averages over draws: p ∝ p̄^(1/T).

An average of many draws is more often right than it says, also where the head was fitted to averages of as many. One
number, chosen by likelihood, takes that back where it is the same for all images; of what draws add under shift it
takes a part, too.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from byov.prediction.result import Prediction, entropy

RANGE = 4.0
"""T lies between 1/4 and 4: a few images that are all right, or all wrong, would ask for 0 or infinity."""

FOLDS = 5
"""Each is read by a head that was fitted on the others: with two, that head would have seen half of the examples, and
be more overconfident than the one that is used."""

EXAMPLES = 10_000
"""How many training examples the commands fit a temperature on, where there are as many."""


def tempered(probs: Tensor, temperature: float) -> Tensor:
    """Return p^(1/T), normalised over the last dimension."""
    return (_logs(probs) / temperature).softmax(-1)


def temper(prediction: Prediction, temperature: float) -> Prediction:
    """Put a prediction's mean at a temperature.

    The mutual information stays as it is, for the draws disagree as before; the rest of the entropy is aleatoric.
    """
    assert prediction.mutual_information is not None
    mean = tempered(prediction.mean, temperature)
    total = entropy(mean)
    epistemic = torch.minimum(prediction.mutual_information, total)
    return replace(
        prediction, mean=mean, entropy=total, expected_entropy=total - epistemic, mutual_information=epistemic
    )


def fit_temperature(probs: Tensor, labels: Tensor) -> float:
    """Find the T under which the labels (N,) are most likely, given probabilities (N, C).

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


def _logs(probs: Tensor) -> Tensor:
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()
