"""What the shells share: float64 states that reduce over processes, and a mean of batch means."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat


class Shell(Metric):
    """A `torchmetrics.Metric` around a pure function. Its states are float64; it adds no mathematics of its own."""

    is_differentiable = False
    full_state_update = False

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of every state. torchmetrics fills the list of a process that saw no data with it."""
        return torch.float64

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot one value or a sequence of values of `compute`; returns the figure and the axes."""
        fig, axes = self._plot(val, ax)
        return (fig if ax is None else ax.figure), axes  # torchmetrics leaves the figure out where axes are given

    def _sum_state(self, name: str, *shape: int) -> None:
        self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def _list_state(self, name: str) -> None:
        self.add_state(name, [], dist_reduce_fx="cat")

    def _joined(self, name: str, what: str = "samples") -> Tensor:
        """All batches of a list state, from all processes."""
        batches = getattr(self, name)
        joined = batches if isinstance(batches, Tensor) else dim_zero_cat(batches or [torch.empty(0)])
        if joined.numel() == 0:
            raise ValueError(f"{type(self).__name__} has seen no {what}.")
        return joined

    def _seen(self, count: Tensor) -> Tensor:
        """Refuse to report on nothing."""
        if not bool(count > 0):
            raise ValueError(f"{type(self).__name__} has seen no samples.")
        return count


class RunningMean(Shell):
    """The mean over samples of a quantity whose batch means are given: states are the total and the count.

    The total is named after its quantity. A `MetricCollection` shares the states of metrics whose names and first
    values agree, and two totals may well agree on a first batch without a mistake.
    """

    count: Tensor

    def __init__(self, quantity: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.quantity = quantity
        self._sum_state(quantity)
        self._sum_state("count")

    def _add(self, mean: Tensor, count: int) -> None:
        setattr(self, self.quantity, getattr(self, self.quantity) + mean * count)
        self.count += count

    def compute(self) -> Tensor:
        """The mean over all samples seen, a float64 scalar."""
        return getattr(self, self.quantity) / self._seen(self.count)
