"""Weighted k nearest neighbours in cosine similarity (Wu et al. 2018), as self-supervised features are read."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from byov.ssl.linear import check_features

CHUNK_ELEMENTS = 1 << 28
"""How many similarities (1 GiB in float32) are held at once."""


class KNN(nn.Module):
    """p(c | x) ∝ Σ over the k nearest training features of exp(cos(x, xᵢ)/T)·[yᵢ = c].

    Args:
        features: (N, D), or (S, N, D) for the same N examples under S draws: each example is then there once per draw,
            and k·S neighbours are asked, so that draws without spread change nothing.
        labels: (N,).
        k: how many neighbours, at most N.
        temperature: T.
        classes: C; by default one more than the largest label.
    """

    features: Tensor
    labels: Tensor

    def __init__(
        self, features: Tensor, labels: Tensor, k: int = 200, temperature: float = 0.1, classes: int | None = None
    ) -> None:
        super().__init__()
        draws, labels, self.classes = check_features(features, labels, classes)
        if not 1 <= k <= len(labels):
            raise ValueError(f"k lies between 1 and the {len(labels)} training features, not at {k}.")
        if not temperature > 0:
            raise ValueError(f"A temperature is above 0, not {temperature}.")
        self.k, self.temperature = k * len(draws), temperature
        self.register_buffer("features", F.normalize(draws.flatten(0, 1).float(), dim=1))
        self.register_buffer("labels", labels.repeat(len(draws)))

    def probabilities(self, features: Tensor) -> Tensor:
        """(N, C) in float32 for features (N, D)."""
        rows = max(1, CHUNK_ELEMENTS // len(self.features))
        return torch.cat([self._votes(part) for part in features.split(rows)])

    forward = probabilities

    @torch.no_grad()
    def _votes(self, features: Tensor) -> Tensor:
        similarity = F.normalize(features.float(), dim=1) @ self.features.T
        nearest, index = similarity.topk(self.k, dim=1, sorted=False)
        # exp(cos/T) divided by its sum is a softmax, which does not overflow at a small T.
        weights = (nearest / self.temperature).softmax(1)
        return weights.new_zeros(len(features), self.classes).scatter_add_(1, self.labels[index], weights)

    def extra_repr(self) -> str:
        return f"{len(self.features)} features, k={self.k}, temperature={self.temperature}, classes={self.classes}"


def knn(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    k: int = 200,
    temperature: float = 0.1,
    classes: int | None = None,
) -> Tensor:
    """Class probabilities (N, C) of the test features by weighted nearest neighbours; see `KNN`."""
    return KNN(train_features, train_labels, k, temperature, classes).probabilities(test_features)
