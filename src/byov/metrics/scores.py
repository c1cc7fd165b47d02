"""Scores of a prediction against the truth over batches: accuracy, log and Brier score, calibration, RMSE, density."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import Tensor

from byov.metrics._shell import RunningMean, Samples, Sums, Value, figure_and_axes
from byov.metrics.functional import calibration, scores
from byov.metrics.functional._checks import check_classification, check_whole


class Accuracy(RunningMean):
    """Top-k accuracy; see `functional.accuracy`.

    Example:
        >>> Accuracy(top_k=2)(torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.4, 0.3]]), torch.tensor([0, 2])).item()
        0.5
    """

    higher_is_better = True
    plot_upper_bound = 1.0

    def __init__(self, top_k: int = 1, **kwargs: Any) -> None:
        check_whole(top_k, "top_k")
        super().__init__(f"top_{top_k}", partial(scores.accuracy, top_k=top_k), **kwargs)
        self.top_k = top_k


class NLL(RunningMean):
    """Negative log-likelihood, −(1/N) Σᵢ log pᵢ(yᵢ), in nats; see `functional.nll`.

    Example:
        >>> round(NLL()(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([0, 0])).item(), 6)  # log(8) / 2
        1.039721
    """

    def __init__(self, log_input: bool = False, **kwargs: Any) -> None:
        super().__init__("nats", partial(scores.nll, log_input=log_input), **kwargs)
        self.log_input = log_input


class Brier(RunningMean):
    """Brier score, (1/N) Σᵢ ‖pᵢ − yᵢ‖², 0 to 2; see `functional.brier_score`.

    Example:
        >>> Brier()(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 1])).item()  # (0.5 + 2) / 2
        1.25
    """

    plot_upper_bound = 2.0

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("squared_distance", scores.brier_score, **kwargs)


class BrierDecomposition(Sums[scores.BrierParts]):
    """The four parts of the Brier score in a single pass; see `functional.brier_decomposition`.

    The states are sums per predicted class, 2 C² + 2 numbers for any number of samples, so batches and processes add up
    to the exact decomposition of all data.

    Example:
        >>> metric = BrierDecomposition(num_classes=2)
        >>> parts = metric(torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.3, 0.7], [0.1, 0.9]]), torch.tensor([0, 1, 1, 1]))
        >>> {name: round(part.item(), 6) for name, part in parts._asdict().items()}
        {'uncertainty': 0.375, 'resolution': 0.125, 'reliability': 0.1, 'within_bin': -0.1}
    """

    higher_is_better = plot_lower_bound = None
    _value = staticmethod(scores.parts_of_sums)

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        check_whole(num_classes, "num_classes")
        table = num_classes, num_classes
        super().__init__({"counts": table, "forecasts": table, "square": (), "hit": ()}, **kwargs)
        self.num_classes = num_classes

    def update(self, probs: Tensor, labels: Tensor) -> None:
        """Add a batch: probs (N, C), labels (N,)."""
        sums = scores.brier_sums(probs, labels)
        if probs.shape[1] != self.num_classes:
            raise ValueError(f"probs must have num_classes={self.num_classes} columns, got {probs.shape[1]}.")
        self._add(*sums)


class _EqualWidthBins(Sums[Value]):
    """Counts, confidences and hits of equal-width bins: 3 B numbers for any number of samples."""

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
    """The calibration error expected of a perfectly calibrated model; see `functional.calibration_floor`.

    It takes labels, like `CalibrationError`, but uses only the confidences.

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


class RMSE(RunningMean):
    """Root mean squared error; see `functional.rmse`.

    Example:
        >>> RMSE()(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 5.0])).item()
        3.0
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("squared_error", scores.squared_error, **kwargs)

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Add a batch: prediction and target of the same shape."""
        self._add(self._function(prediction, target) * target.numel(), target.numel())

    def _value(self, total: Tensor, count: Tensor) -> Tensor:
        return super()._value(total, count).sqrt()


class LogPredictiveDensity(RunningMean):
    """Log predictive density of a Gaussian output; see `functional.log_predictive_density`.

    Each batch needs all its draws, because the mean over draws is inside the logarithm.

    Example:
        >>> metric = LogPredictiveDensity(precision=4.0)
        >>> round(metric(torch.tensor([[0.0, 1.0], [2.0, 1.0]]), torch.tensor([1.0, 1.0])).item(), 6)
        -1.225791
    """

    higher_is_better, plot_lower_bound = True, None

    def __init__(self, precision: float | Tensor, **kwargs: Any) -> None:
        scores.check_precision(precision)
        super().__init__("log_density", partial(scores.log_predictive_density, precision=precision), **kwargs)
        self.precision = precision

    def update(self, draws: Tensor | Iterable[Tensor], target: Tensor) -> None:
        """Add a batch: draws (S, N[, D]) or an iterable of S tensors (N[, D]), target (N[, D])."""
        self._add(self._function(draws, target) * len(target), len(target))
