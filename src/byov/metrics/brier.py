"""The Brier score and its decomposition over batches."""

from typing import Any

from torch import Tensor

from byov.metrics._shell import RunningMean, Shell
from byov.metrics.functional._checks import check_classification, check_whole
from byov.metrics.functional.brier import BrierParts, BrierSums, brier_score, brier_sums, parts_of_sums


class Brier(RunningMean):
    """Brier score, 0 to 2; see `functional.brier_score`.

    Example:
        >>> import torch
        >>> metric = Brier()
        >>> metric.update(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 1]))
        >>> metric.compute().item()  # (0.5 + 2) / 2
        1.25
    """

    higher_is_better = False
    plot_lower_bound, plot_upper_bound = 0.0, 2.0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("squared_distance", **kwargs)

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add a batch: probs (N, C), labels (N,)."""
        self._add(brier_score(probs, labels), len(labels))


class BrierDecomposition(Shell):
    """The four parts of the Brier score in a single pass; see `functional.brier_decomposition`.

    The states are sums per predicted class, 2 C² + 2 numbers whatever the number of samples, so batches and processes
    add up to the exact decomposition of the whole.

    Example:
        >>> import torch
        >>> metric = BrierDecomposition(num_classes=2)
        >>> metric.update(torch.tensor([[0.8, 0.2], [0.6, 0.4]]), torch.tensor([0, 1]))
        >>> metric.update(torch.tensor([[0.3, 0.7], [0.1, 0.9]]), torch.tensor([1, 1]))
        >>> {name: round(part.item(), 6) for name, part in metric.compute()._asdict().items()}
        {'uncertainty': 0.375, 'resolution': 0.125, 'reliability': 0.1, 'within_bin': -0.1}
    """

    labels: Tensor
    forecast: Tensor
    square: Tensor
    hit: Tensor

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        check_whole(num_classes, "num_classes")
        super().__init__(**kwargs)
        self.num_classes = num_classes
        self._sum_state("labels", num_classes, num_classes)
        self._sum_state("forecast", num_classes, num_classes)
        self._sum_state("square")
        self._sum_state("hit")

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add a batch: probs (N, C), labels (N,)."""
        labels = check_classification(probs, labels)
        if probs.shape[1] != self.num_classes:
            raise ValueError(f"probs must have num_classes={self.num_classes} columns, got {probs.shape[1]}.")
        sums = brier_sums(probs, labels)
        self.labels += sums.labels
        self.forecast += sums.forecast
        self.square += sums.square
        self.hit += sums.hit

    def compute(self) -> BrierParts:
        """The parts over all samples seen."""
        self._seen(self.labels.sum())
        return parts_of_sums(BrierSums(self.labels, self.forecast, self.square, self.hit))

    def plot(self, val: BrierParts | None = None, ax: Any = None) -> Any:
        """Plot the parts as points; returns the figure and the axes."""
        return super().plot((val or self.compute())._asdict(), ax)
