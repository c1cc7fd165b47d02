"""Corruption errors over batches: errors are counted per corruption and severity, and compared in `compute`.

The baseline's errors are fractions in 0..1, since that is what counting gives. A single batch has one corruption only,
so these metrics are fed by `update`; `forward`, which also computes the batch's own value, has nothing to return.
"""

from typing import Any

from torch import Tensor

from byov.metrics._shell import Shell
from byov.metrics.functional._checks import check_choice
from byov.metrics.functional.corruption import (
    Denominator,
    Errors,
    corruption_error,
    error_table,
    mean_corruption_error,
    relative_corruption_error,
    relative_mean_corruption_error,
)
from byov.metrics.functional.scores import accuracy


class _CorruptionCounts(Shell):
    """Wrong and all predictions: one row per corruption, one column per severity, and a last row for clean data."""

    higher_is_better = False
    plot_lower_bound = 0.0
    wrong: Tensor
    count: Tensor

    def __init__(self, baseline: Errors, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.baseline = error_table(baseline, "baseline")
        _check_fraction(max(errors.max().item() for errors in self.baseline.values()), "baseline")
        self.rows = {name: row for row, name in enumerate(self.baseline)}
        shape = len(self.rows) + 1, max(map(len, self.baseline.values()))
        self._sum_state("wrong", *shape)
        self._sum_state("count", *shape)

    def _count(self, probs: Tensor, labels: Tensor, row: int, column: int) -> None:
        wrong = (1 - accuracy(probs, labels)) * len(labels)
        self.wrong[row, column] += wrong
        self.count[row, column] += len(labels)

    def _cell(self, corruption: str, severity: int) -> tuple[int, int]:
        check_choice(corruption, "corruption", tuple(self.rows))
        last = len(self.baseline[corruption])
        if isinstance(severity, bool) or not isinstance(severity, int) or not 1 <= severity <= last:
            raise ValueError(f"severity must lie in 1..{last} for {corruption!r}, got {severity!r}.")
        return self.rows[corruption], severity - 1

    def _errors(self) -> dict[str, Tensor]:
        """The top-1 errors seen, by corruption."""
        errors = {}
        for name, row in self.rows.items():
            severities = len(self.baseline[name])
            wrong, count = self.wrong[row, :severities].cpu(), self.count[row, :severities].cpu()
            if not bool(count.all()):
                missing = int((count == 0).nonzero()[0]) + 1
                raise ValueError(f"{type(self).__name__} has seen no samples of {name!r} at severity {missing}.")
            errors[name] = wrong / count
        return errors


class _Corrupted(_CorruptionCounts):
    def update(self, probs: Tensor, labels: Tensor, corruption: str, severity: int) -> None:
        """Add a batch, probs (N, C) and labels (N,), of one corruption at one severity, counted from 1."""
        self._count(probs, labels, *self._cell(corruption, severity))


class _CleanAndCorrupted(_CorruptionCounts):
    def __init__(
        self, baseline: Errors, baseline_clean: float, denominator: Denominator = "baseline", **kwargs: Any
    ) -> None:
        super().__init__(baseline, **kwargs)
        check_choice(denominator, "denominator", ("baseline", "own"))
        _check_fraction(baseline_clean, "baseline_clean")
        self.baseline_clean = baseline_clean
        self.denominator: Denominator = denominator

    def update(self, probs: Tensor, labels: Tensor, corruption: str | None = None, severity: int | None = None) -> None:
        """Add a batch, probs (N, C) and labels (N,), of one corruption at one severity; of clean data without them."""
        if (corruption is None) != (severity is None):
            raise ValueError("corruption and severity must be given together, or neither for clean data.")
        clean = len(self.rows), 0
        cell = clean if corruption is None or severity is None else self._cell(corruption, severity)
        self._count(probs, labels, *cell)

    def _arguments(self) -> tuple[Errors, float, Errors, float, Denominator]:
        if not bool(self.count[-1, 0]):
            raise ValueError(f"{type(self).__name__} has seen no clean samples.")
        clean = float(self.wrong[-1, 0] / self.count[-1, 0])
        return self._errors(), clean, self.baseline, self.baseline_clean, self.denominator


class CorruptionError(_Corrupted):
    """CE_c for each corruption, in per cent of the baseline; see `functional.corruption_error`.

    Example:
        >>> import torch
        >>> metric = CorruptionError(baseline={"fog": [0.5, 1.0]})
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 0]), "fog", severity=1)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]), "fog", severity=2)
        >>> {name: round(value.item(), 6) for name, value in metric.compute().items()}  # (0 + 0.5) / (0.5 + 1)
        {'fog': 33.333333}
    """

    def compute(self) -> dict[str, Tensor]:
        """corruption → float64 scalar, in per cent."""
        return corruption_error(self._errors(), self.baseline)


class MeanCorruptionError(_Corrupted):
    """mCE, in per cent of the baseline; see `functional.mean_corruption_error`.

    Example:
        >>> import torch
        >>> metric = MeanCorruptionError(baseline={"fog": [0.5], "snow": [1.0]})
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]), "fog", severity=1)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]), "snow", severity=1)
        >>> metric.compute().item()  # (100 + 50) / 2
        75.0
    """

    def compute(self) -> Tensor:
        """The mean over corruptions, a float64 scalar, in per cent."""
        return mean_corruption_error(self._errors(), self.baseline)


class RelativeCorruptionError(_CleanAndCorrupted):
    """rCE_c for each corruption, in per cent of the baseline; see `functional.relative_corruption_error`.

    Example:
        >>> import torch
        >>> metric = RelativeCorruptionError(baseline={"fog": [1.0]}, baseline_clean=0.5)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 0]))
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]), "fog", severity=1)
        >>> metric.compute()["fog"].item()  # (0.5 − 0) / (1 − 0.5)
        100.0
    """

    def compute(self) -> dict[str, Tensor]:
        """corruption → float64 scalar, in per cent."""
        return relative_corruption_error(*self._arguments())


class RelativeMeanCorruptionError(_CleanAndCorrupted):
    """rmCE, in per cent of the baseline; see `functional.relative_mean_corruption_error`.

    Example:
        >>> import torch
        >>> metric = RelativeMeanCorruptionError(baseline={"fog": [1.0]}, baseline_clean=0.5, denominator="own")
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 0]))
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1]), "fog", severity=1)
        >>> metric.compute().item()  # (0.5 − 0) / (1 − 0)
        50.0
    """

    def compute(self) -> Tensor:
        """The mean over corruptions, a float64 scalar, in per cent."""
        return relative_mean_corruption_error(*self._arguments())


def _check_fraction(error: float, name: str) -> None:
    if not 0 <= error <= 1:
        raise ValueError(f"{name} must hold fractions in 0..1, got {error}.")
