"""Base classes of the metrics: statistics of each batch go into float64 states, and `compute` returns one value."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

Value = TypeVar("Value")


class BaseMetric(Metric, Generic[Value]):
    """A `torchmetrics.Metric` around pure functions; it adds no mathematics of its own.

    A metric is a subclass of `Sums` or `Samples` that names its states, passes the statistics of a batch to `_add` in
    `update`, and computes its value from the states in `_value`.
    """

    is_differentiable = False
    full_state_update = False
    higher_is_better: bool | None = False  # by default an error of at least 0
    plot_lower_bound: float | None = 0.0

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of every state; torchmetrics uses it for the state of a process that saw no data."""
        return torch.float64

    def compute(self) -> Value:
        """Return the value over all samples seen."""
        return self._value(*self._states())

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot one value or a sequence of values of `compute`; return the figure and the axes."""
        val = self.compute() if val is None else val
        fig, axes = self._plot(val._asdict() if hasattr(val, "_asdict") else val, ax)
        return (fig if ax is None else ax.figure), axes  # torchmetrics returns no figure if axes are given

    @abstractmethod
    def _value(self, *args: Any, **kwargs: Any) -> Value:
        """Compute the value from the states, in their order."""

    @abstractmethod
    def _states(self) -> Sequence[Tensor]:
        """Return the states of all batches and processes."""

    def _require_data(self, seen: Tensor | int, kind: str = "samples") -> None:
        if not seen:
            raise ValueError(f"{type(self).__name__} has seen no {kind}.")


class Sums(BaseMetric[Value]):
    """Metric whose states are sums over batches and processes, including a count; all zero means no data was seen."""

    def __init__(self, shapes: dict[str, tuple[int, ...]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._names = tuple(shapes)
        for name, shape in shapes.items():
            self.add_state(name, torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def _add(self, *sums: Tensor | int) -> None:
        for name, batch in zip(self._names, sums, strict=True):
            setattr(self, name, getattr(self, name) + batch)

    def _states(self) -> Sequence[Tensor]:
        sums = [getattr(self, name) for name in self._names]
        self._require_data(any(state.any() for state in sums))
        return sums


class Samples(BaseMetric[Value]):
    """Metric whose states are lists with one number per sample; `kinds` maps their names to the kind of sample."""

    def __init__(self, kinds: dict[str, str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._kinds = kinds
        for name in kinds:
            self.add_state(name, [], dist_reduce_fx="cat")

    def _add(self, *samples: Tensor) -> None:
        for name, batch in zip(self._kinds, samples, strict=True):
            getattr(self, name).append(batch.double())

    def _states(self) -> Sequence[Tensor]:
        states = [getattr(self, name) for name in self._kinds]  # lists of batches; tensors once they are reduced
        states = [dim_zero_cat(state) if len(state) else torch.empty(0) for state in states]
        for state, kind in zip(states, self._kinds.values(), strict=True):
            self._require_data(len(state), kind)
        return states


class RunningMean(Sums[Tensor]):
    """The mean over samples of a function of `probs` and `labels`; its states are the total and the count.

    The total is named after its quantity: a `MetricCollection` shares the states of metrics whose state names and first
    values agree, and two different totals may agree on the first batch by chance.
    """

    def __init__(self, quantity: str, function: Callable[..., Tensor], **kwargs: Any) -> None:
        super().__init__({quantity: (), "count": ()}, **kwargs)
        self._function = function

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add a batch: probs (N, C), labels (N,)."""
        self._add(self._function(probs, labels) * len(labels), len(labels))

    def _value(self, total: Tensor, count: Tensor) -> Tensor:
        return total / count


def figure_and_axes(ax: Any) -> tuple[Any, Any]:
    """Return the figure of the axes `ax` and `ax` itself, or new ones if `ax` is None."""
    import matplotlib.pyplot as plt

    return plt.subplots() if ax is None else (ax.figure, ax)
