"""Corruption errors over batches: errors are counted per corruption and severity, and compared in `compute`.

The baseline's errors are fractions in 0..1, because counting gives fractions. A single batch has only one corruption,
so use `update`; `forward` also computes the value of the batch alone, which is undefined here.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from byov.metrics._shell import Sums, Value
from byov.metrics.functional import corruption as functional
from byov.metrics.functional._checks import check_choice
from byov.metrics.functional.scores import accuracy


class _Corrupted(Sums[Value]):
    """Counts of wrong and all predictions: a row per corruption, a column per severity, a last row for clean data."""

    count: Tensor
    _function: Callable[..., Value]

    def __init__(self, baseline: functional.Errors, **kwargs: Any) -> None:
        table = functional.error_table(baseline, "baseline")
        _check_fraction(max(errors.max().item() for errors in table.values()), "baseline")
        shape = len(table) + 1, max(map(len, table.values()))
        super().__init__({"wrong": shape, "count": shape}, **kwargs)
        self.baseline = table

    def update(self, probs: Tensor, labels: Tensor, corruption: str, severity: int) -> None:
        """Add a batch, probs (N, C) and labels (N,), of one corruption at one severity, counted from 1."""
        check_choice(corruption, "corruption", tuple(self.baseline))
        last = len(self.baseline[corruption])
        if isinstance(severity, bool) or not isinstance(severity, int) or not 1 <= severity <= last:
            raise ValueError(f"severity must lie in 1..{last} for {corruption!r}, got {severity!r}.")
        self._count(probs, labels, list(self.baseline).index(corruption), severity - 1)

    def _count(self, probs: Tensor, labels: Tensor, row: int, column: int) -> None:
        error = 1 - accuracy(probs, labels)
        count = torch.zeros_like(self.count)
        count[row, column] = len(labels)
        self._add(error * count, count)

    def _value(self, wrong: Tensor, count: Tensor) -> Value:
        return self._function(self._errors(wrong, count), self.baseline)

    def _errors(self, wrong: Tensor, count: Tensor) -> dict[str, Tensor]:
        """Return the top-1 errors seen, by corruption."""
        errors = (wrong / count).cpu()  # NaN where nothing was seen
        table = {name: row[: len(self.baseline[name])] for name, row in zip(self.baseline, errors, strict=False)}
        for name, row in table.items():
            for severity, error in enumerate(row, start=1):
                self._require_data(not error.isnan(), f"samples of {name!r} at severity {severity}")
        return table


class _CleanAndCorrupted(_Corrupted[Value]):
    def __init__(
        self,
        baseline: functional.Errors,
        baseline_clean: float,
        denominator: functional.Denominator = "baseline",
        **kwargs: Any,
    ) -> None:
        super().__init__(baseline, **kwargs)
        check_choice(denominator, "denominator", ("baseline", "own"))
        _check_fraction(baseline_clean, "baseline_clean")
        self.baseline_clean, self.denominator = baseline_clean, denominator

    def update(self, probs: Tensor, labels: Tensor, corruption: str | None = None, severity: int | None = None) -> None:
        """Add a batch, probs (N, C) and labels (N,), of one corruption at one severity; without both, of clean data."""
        if corruption is not None and severity is not None:
            super().update(probs, labels, corruption, severity)
        elif corruption is None and severity is None:
            self._count(probs, labels, -1, 0)
        else:
            raise ValueError("corruption and severity must be given together, or neither for clean data.")

    def _value(self, wrong: Tensor, count: Tensor) -> Value:
        self._require_data(count[-1, 0], "clean samples")
        errors, clean = self._errors(wrong, count), float(wrong[-1, 0] / count[-1, 0])
        return self._function(errors, clean, self.baseline, self.baseline_clean, self.denominator)


class CorruptionError(_Corrupted[dict[str, Tensor]]):
    """CE_c for each corruption, in per cent of the baseline; see `functional.corruption_error`.

    Example:
        >>> metric = CorruptionError(baseline={"fog": [0.5, 1.0]})
        >>> metric.update(torch.eye(2), torch.tensor([0, 1]), "fog", severity=1)
        >>> metric.update(torch.eye(2), torch.tensor([0, 0]), "fog", severity=2)
        >>> {name: round(value.item(), 6) for name, value in metric.compute().items()}  # (0 + 0.5) / (0.5 + 1)
        {'fog': 33.333333}
    """

    _function = staticmethod(functional.corruption_error)


class MeanCorruptionError(_Corrupted[Tensor]):
    """mCE, in per cent of the baseline; see `functional.mean_corruption_error`.

    Example:
        >>> metric = MeanCorruptionError(baseline={"fog": [0.5], "snow": [1.0]})
        >>> for corruption in ("fog", "snow"):
        ...     metric.update(torch.eye(2), torch.tensor([0, 0]), corruption, severity=1)
        >>> metric.compute().item()  # (100 + 50) / 2
        75.0
    """

    _function = staticmethod(functional.mean_corruption_error)


class RelativeCorruptionError(_CleanAndCorrupted[dict[str, Tensor]]):
    """rCE_c for each corruption, in per cent of the baseline; see `functional.relative_corruption_error`.

    Example:
        >>> metric = RelativeCorruptionError(baseline={"fog": [1.0]}, baseline_clean=0.5)
        >>> metric.update(torch.eye(2), torch.tensor([0, 1]))
        >>> metric.update(torch.eye(2), torch.tensor([0, 0]), "fog", severity=1)
        >>> metric.compute()["fog"].item()  # (0.5 − 0) / (1 − 0.5)
        100.0
    """

    _function = staticmethod(functional.relative_corruption_error)


class RelativeMeanCorruptionError(_CleanAndCorrupted[Tensor]):
    """rmCE, in per cent of the baseline; see `functional.relative_mean_corruption_error`.

    Example:
        >>> metric = RelativeMeanCorruptionError(baseline={"fog": [1.0]}, baseline_clean=0.5, denominator="own")
        >>> metric.update(torch.eye(2), torch.tensor([0, 1]))
        >>> metric.update(torch.eye(2), torch.tensor([0, 0]), "fog", severity=1)
        >>> metric.compute().item()  # (0.5 − 0) / (1 − 0)
        50.0
    """

    _function = staticmethod(functional.relative_mean_corruption_error)


def _check_fraction(error: float, name: str) -> None:
    if not 0 <= error <= 1:
        raise ValueError(f"{name} must hold fractions in 0..1, got {error}.")
