"""Accuracy and the log score over batches."""

from typing import Any

from torch import Tensor

from byov.metrics._shell import RunningMean
from byov.metrics.functional._checks import check_whole
from byov.metrics.functional.scores import accuracy, nll


class Accuracy(RunningMean):
    """Top-k accuracy; see `functional.accuracy`.

    Example:
        >>> import torch
        >>> metric = Accuracy(top_k=2)
        >>> metric.update(torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3]]), torch.tensor([0, 2]))
        >>> metric.compute().item()
        0.5
    """

    higher_is_better = True
    plot_lower_bound, plot_upper_bound = 0.0, 1.0

    def __init__(self, top_k: int = 1, **kwargs: Any) -> None:
        check_whole(top_k, "top_k")
        super().__init__(f"top_{top_k}", **kwargs)
        self.top_k = top_k

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add a batch: probs (N, C), labels (N,)."""
        self._add(accuracy(probs, labels, self.top_k), len(labels))


class NLL(RunningMean):
    """Negative log-likelihood in nats; see `functional.nll`.

    Example:
        >>> import torch
        >>> metric = NLL()
        >>> metric.update(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
        >>> metric.update(torch.tensor([[0.25, 0.75]]), torch.tensor([0]))
        >>> round(metric.compute().item(), 6)  # (log 2 + log 4) / 2
        1.039721
    """

    higher_is_better = False
    plot_lower_bound = 0.0

    def __init__(self, log_input: bool = False, **kwargs: Any) -> None:
        super().__init__("nats", **kwargs)
        self.log_input = log_input

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add a batch: probs (N, C) or their logarithm, labels (N,)."""
        self._add(nll(probs, labels, log_input=self.log_input), len(labels))
