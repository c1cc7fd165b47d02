"""The base of every metric class: statistics of a batch go into float64 states, `compute` makes one value of them."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat

Value = TypeVar("Value")


class Shell(Metric, Generic[Value]):
    """A `torchmetrics.Metric` around pure functions; it adds no mathematics of its own.

    A metric is a subclass of `Sums` or `Samples` that names its states, hands the statistics of a batch to `_add` in
    `update`, and computes its value from the states in `_value`.
    """

    is_differentiable = False
    full_state_update = False
    higher_is_better: bool | None = False  # an error from 0 upwards, where a subclass does not say otherwise
    plot_lower_bound: float | None = 0.0

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of every state. torchmetrics fills the list of a process that saw no data with it."""
        return torch.float64

    def compute(self) -> Value:
        """Return the value over all samples seen."""
        return self._value(*self._states())

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot one value or a sequence of values of `compute`; return the figure and the axes."""
        val = self.compute() if val is None else val
        fig, axes = self._plot(val._asdict() if hasattr(val, "_asdict") else val, ax)
        return (fig if ax is None else ax.figure), axes  # torchmetrics leaves the figure out where axes are given

    @abstractmethod
    def _value(self, *args: Any, **kwargs: Any) -> Value:
        """Compute the value from the states, in their order."""

    @abstractmethod
    def _states(self) -> Sequence[Tensor]:
        """Return the states of all batches and processes."""

    def _refuse_nothing(self, seen: Tensor | int, kind: str = "samples") -> None:
        if not seen:
            raise ValueError(f"{type(self).__name__} has seen no {kind}.")


class Sums(Shell[Value]):
    """States are sums over batches and processes, with a count among them: all zero means that nothing was seen."""

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
        self._refuse_nothing(any(state.any() for state in sums))
        return sums


class Samples(Shell[Value]):
    """States are lists with one number for every sample of a kind; `kinds` maps their names to what they hold."""

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
            self._refuse_nothing(len(state), kind)
        return states


class RunningMean(Sums[Tensor]):
    """The mean over samples of a function of `probs` and `labels`: states are the total and the count.

    The total is named after its quantity. A `MetricCollection` shares the states of metrics whose names and first
    values agree, and two totals may well agree on a first batch without a mistake.
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
    """Return the figure of the axes `ax` and themselves, or new ones where there are none."""
    import matplotlib.pyplot as plt

    return plt.subplots() if ax is None else (ax.figure, ax)
