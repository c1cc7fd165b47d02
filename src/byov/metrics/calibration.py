"""Calibration errors and the reliability diagram over batches."""

from typing import Any

from torch import Tensor

from byov.metrics._shell import Shell
from byov.metrics.functional._checks import check_classification
from byov.metrics.functional.calibration import (
    Norm,
    ReliabilityBins,
    adaptive_error,
    bin_sums,
    bin_variances,
    check_bins,
    diagram_of_bins,
    equal_width,
    error_of_bins,
    floor_of_bins,
    top_label,
)


class _EqualWidthBins(Shell):
    """Counts, confidences and hits of equal-width bins: 3 B numbers whatever the number of samples."""

    sums: Tensor

    def __init__(self, bins: int, **kwargs: Any) -> None:
        check_bins(bins)
        super().__init__(**kwargs)
        self.bins = bins
        self._sum_state("sums", 3, bins)

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add a batch: probs (N, C), labels (N,)."""
        labels = check_classification(probs, labels)
        confidence, correct = top_label(probs, labels)
        self.sums += bin_sums(confidence, correct, equal_width(confidence, self.bins), self.bins)


class CalibrationError(_EqualWidthBins):
    """Expected or maximum calibration error with equal-width bins; see `functional.calibration_error`.

    Example:
        >>> import torch
        >>> metric = CalibrationError(bins=10, norm="max")
        >>> metric.update(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
        >>> metric.update(torch.tensor([[0.8, 0.2]]), torch.tensor([1]))
        >>> round(metric.compute().item(), 6)
        0.8
    """

    higher_is_better = False
    plot_lower_bound, plot_upper_bound = 0.0, 1.0

    def __init__(self, bins: int = 15, norm: Norm = "l1", min_count: int = 0, **kwargs: Any) -> None:
        check_bins(bins, norm, min_count)
        super().__init__(bins, **kwargs)
        self.norm = norm
        self.min_count = min_count

    def compute(self) -> Tensor:
        """The calibration error over all samples seen, a float64 scalar."""
        self._seen(self.sums[0].sum())
        return error_of_bins(self.sums, self.norm, self.min_count)


class ReliabilityDiagram(_EqualWidthBins):
    """Accuracy against confidence, bin by bin; see `functional.reliability_diagram`.

    Example:
        >>> import torch
        >>> metric = ReliabilityDiagram(bins=4)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6]]), torch.tensor([0, 1, 1]))
        >>> metric.compute().accuracy.tolist()
        [nan, nan, 0.5, 1.0]
    """

    def __init__(self, bins: int = 15, **kwargs: Any) -> None:
        super().__init__(bins, **kwargs)

    def compute(self) -> ReliabilityBins:
        """The diagram's numbers over all samples seen."""
        self._seen(self.sums[0].sum())
        return diagram_of_bins(self.sums)

    def plot(self, val: ReliabilityBins | None = None, ax: Any = None) -> Any:
        """Draw accuracy per bin, the diagonal of perfect calibration and each bin's gap to its mean confidence.

        Returns the figure and the axes.
        """
        import matplotlib.pyplot as plt

        edges, count, confidence, accuracy = (part.reshape(-1).cpu() for part in val or self.compute())
        full = count > 0
        left, width = edges[:-1][full], edges.diff()[full]
        confidence, accuracy = confidence[full], accuracy[full]
        fig, ax = plt.subplots() if ax is None else (ax.figure, ax)
        ax.bar(left, accuracy, width, align="edge", edgecolor="white", label="accuracy")
        gap = {"color": "none", "edgecolor": "tab:red", "hatch": "//", "label": "gap to confidence"}
        ax.bar(left, confidence - accuracy, width, bottom=accuracy, align="edge", **gap)
        ax.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="perfect")
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
        ax.set_title(f"top label, {self.bins} equal-width bins")
        ax.legend(loc="upper left")
        return fig, ax


class CalibrationFloor(Shell):
    """What a perfectly calibrated model would read as its calibration error; see `functional.calibration_floor`.

    It takes labels, as the error beside it does, and looks at the confidences alone.

    Example:
        >>> import torch
        >>> metric = CalibrationFloor()
        >>> metric.update(torch.tensor([[0.8, 0.2]]).expand(10_000, 2), torch.zeros(10_000, dtype=torch.int64))
        >>> round(metric.compute().item(), 6)
        0.003192
    """

    higher_is_better = False
    plot_lower_bound, plot_upper_bound = 0.0, 1.0
    variances: Tensor
    count: Tensor

    def __init__(self, bins: int = 15, **kwargs: Any) -> None:
        check_bins(bins)
        super().__init__(**kwargs)
        self.bins = bins
        self._sum_state("variances", bins)
        self._sum_state("count")

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add a batch: probs (N, C), labels (N,)."""
        check_classification(probs, labels)
        self.variances += bin_variances(probs.max(1).values, self.bins)
        self.count += len(probs)

    def compute(self) -> Tensor:
        """The floor over all samples seen, a float64 scalar."""
        return floor_of_bins(self.variances, self._seen(self.count))


class AdaptiveCalibrationError(Shell):
    """Calibration error with equal-mass bins; see `functional.adaptive_calibration_error`.

    The bins depend on all confidences, so two numbers per sample are kept.

    Example:
        >>> import torch
        >>> metric = AdaptiveCalibrationError(bins=2)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]))
        >>> metric.update(torch.tensor([[0.3, 0.7], [0.4, 0.6]]), torch.tensor([1, 1]))
        >>> round(metric.compute().item(), 6)
        0.35
    """

    higher_is_better = False
    plot_lower_bound, plot_upper_bound = 0.0, 1.0
    confidence: list[Tensor]
    correct: list[Tensor]

    def __init__(self, bins: int = 15, norm: Norm = "l1", **kwargs: Any) -> None:
        check_bins(bins, norm)
        super().__init__(**kwargs)
        self.bins = bins
        self.norm = norm
        self._list_state("confidence")
        self._list_state("correct")

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add a batch: probs (N, C), labels (N,)."""
        confidence, correct = top_label(probs, check_classification(probs, labels))
        self.confidence.append(confidence.double())
        self.correct.append(correct.double())

    def compute(self) -> Tensor:
        """The calibration error over all samples seen, a float64 scalar."""
        return adaptive_error(self._joined("confidence"), self._joined("correct"), self.bins, self.norm)
