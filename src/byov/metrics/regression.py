"""Regression metrics over batches."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from byov.metrics._shell import RunningMean
from byov.metrics.functional.regression import check_precision, log_predictive_density, squared_error


class RMSE(RunningMean):
    """Root mean squared error; see `functional.rmse`.

    Example:
        >>> import torch
        >>> metric = RMSE()
        >>> metric.update(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 5.0]))
        >>> metric.compute().item()
        3.0
    """

    higher_is_better = False
    plot_lower_bound = 0.0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("squared_error", **kwargs)

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Add a batch: prediction and target of the same shape."""
        self._add(squared_error(prediction, target), target.numel())

    def compute(self) -> Tensor:
        """The root of the mean over all entries seen, a float64 scalar."""
        return super().compute().sqrt()


class LogPredictiveDensity(RunningMean):
    """Log predictive density of a Gaussian output; see `functional.log_predictive_density`.

    Each batch brings all its draws: the mean over draws stands inside the logarithm.

    Example:
        >>> import torch
        >>> metric = LogPredictiveDensity(precision=4.0)
        >>> metric.update(torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([1.0, 1.0]))
        >>> round(metric.compute().item(), 6)
        -1.225791
    """

    higher_is_better = True

    def __init__(self, precision: float | Tensor, **kwargs: Any) -> None:
        check_precision(precision)
        super().__init__("log_density", **kwargs)
        self.precision = precision

    def update(self, draws: Tensor | Iterable[Tensor], target: Tensor) -> None:
        """Add a batch: draws (S, N[, D]) or an iterable of S tensors (N[, D]), target (N[, D])."""
        self._add(log_predictive_density(draws, target, self.precision), len(target))
