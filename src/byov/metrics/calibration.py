"""Calibration errors and the reliability diagram over batches."""

from typing import Any

from torch import Tensor

from byov.metrics._shell import Samples, Sums, Value, figure_and_axes
from byov.metrics.functional import calibration
from byov.metrics.functional._checks import check_classification


class _EqualWidthBins(Sums[Value]):
    """Counts, confidences and hits of equal-width bins: 3 B numbers whatever the number of samples."""

    def __init__(self, bins: int = 15, **kwargs: Any) -> None:
        calibration.check_bins(bins)
        super().__init__({"sums": (3, bins)}, **kwargs)
        self.bins = bins

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add a batch: probs (N, C), labels (N,)."""
        self._add(calibration.top_label_sums(probs, labels, self.bins))


class CalibrationError(_EqualWidthBins[Tensor]):
    """Expected or maximum calibration error with equal-width bins; see `functional.calibration_error`.

    Example:
        >>> metric = CalibrationError(bins=10, norm="max")
        >>> round(metric(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1])).item(), 6)
        0.8
    """

    plot_upper_bound = 1.0

    def __init__(self, bins: int = 15, norm: calibration.Norm = "l1", min_count: int = 0, **kwargs: Any) -> None:
        calibration.check_bins(bins, norm, min_count)
        super().__init__(bins, **kwargs)
        self.norm, self.min_count = norm, min_count

    def _value(self, sums: Tensor) -> Tensor:
        return calibration.error_of_bins(sums, self.norm, self.min_count)


class ReliabilityDiagram(_EqualWidthBins[calibration.ReliabilityBins]):
    """Accuracy against confidence, bin by bin; see `functional.reliability_diagram`.

    Example:
        >>> metric = ReliabilityDiagram(bins=4)
        >>> metric(torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6]]), torch.tensor([0, 1, 1])).accuracy.tolist()
        [nan, nan, 0.5, 1.0]
    """

    higher_is_better = plot_lower_bound = None
    _value = staticmethod(calibration.diagram_of_bins)

    def plot(self, val: calibration.ReliabilityBins | None = None, ax: Any = None) -> Any:
        """Draw accuracy per bin, perfect calibration and each bin's gap; return the figure and the axes."""
        edges, count, confidence, accuracy = (part.reshape(-1).cpu() for part in val or self.compute())
        full = count > 0
        left, width = edges[:-1][full], edges.diff()[full]
        confidence, accuracy = confidence[full], accuracy[full]
        fig, ax = figure_and_axes(ax)
        ax.bar(left, accuracy, width, align="edge", edgecolor="white", label="accuracy")
        gap = {"color": "none", "edgecolor": "tab:red", "hatch": "//", "label": "gap to confidence"}
        ax.bar(left, confidence - accuracy, width, bottom=accuracy, align="edge", **gap)
        ax.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="perfect")
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
        ax.set_title(f"top label, {self.bins} equal-width bins")
        ax.legend(loc="upper left")
        return fig, ax


class CalibrationFloor(Sums[Tensor]):
    """The calibration error that a perfectly calibrated model would read; see `functional.calibration_floor`.

    It takes labels, as the error beside it does, and looks at the confidences alone.

    Example:
        >>> probs, labels = torch.tensor([[0.8, 0.2]]).expand(10_000, 2), torch.zeros(10_000, dtype=torch.int64)
        >>> round(CalibrationFloor()(probs, labels).item(), 6)
        0.003192
    """

    plot_upper_bound = 1.0
    _value = staticmethod(calibration.floor_of_bins)

    def __init__(self, bins: int = 15, **kwargs: Any) -> None:
        calibration.check_bins(bins)
        super().__init__({"variances": (bins,), "count": ()}, **kwargs)
        self.bins = bins

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add a batch: probs (N, C), labels (N,)."""
        check_classification(probs, labels)
        self._add(calibration.bin_variances(probs, self.bins), len(probs))


class AdaptiveCalibrationError(Samples[Tensor]):
    """Calibration error with equal-mass bins; see `functional.adaptive_calibration_error`.

    The bins depend on all confidences, so two numbers per sample are kept.

    Example:
        >>> metric = AdaptiveCalibrationError(bins=2)
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
        >>> round(metric(probs, torch.tensor([0, 1, 1, 1])).item(), 6)
        0.35
    """

    plot_upper_bound = 1.0

    def __init__(self, bins: int = 15, norm: calibration.Norm = "l1", **kwargs: Any) -> None:
        calibration.check_bins(bins, norm)
        super().__init__({"confidence": "samples", "correct": "samples"}, **kwargs)
        self.bins, self.norm = bins, norm

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add a batch: probs (N, C), labels (N,)."""
        self._add(*calibration.top_label(probs, labels))

    def _value(self, confidence: Tensor, correct: Tensor) -> Tensor:
        return calibration.adaptive_error(confidence, correct, self.bins, self.norm)
