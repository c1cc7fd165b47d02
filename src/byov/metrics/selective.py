"""Selective prediction over batches. The curve ranks all samples, so two numbers per sample are kept."""

from typing import Any

from torch import Tensor

from byov.metrics._shell import Shell
from byov.metrics.functional.selective import RiskCoverageCurve, curve_of_errors, uncertain_errors


class _RankedErrors(Shell):
    """The uncertainty and the 0/1 error of every sample."""

    higher_is_better = False
    uncertainty: list[Tensor]
    error: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._list_state("uncertainty")
        self._list_state("error")

    def update(self, probs: Tensor, labels: Tensor, uncertainty: Tensor | None = None) -> None:
        """Add a batch: probs (N, C), labels (N,), and any score (N,); 1 − max_c p(c) where it is not given."""
        score, error = uncertain_errors(probs, labels, uncertainty)
        self.uncertainty.append(score)
        self.error.append(error)

    def _curve(self) -> RiskCoverageCurve:
        return curve_of_errors(self._joined("uncertainty"), self._joined("error"))


class RiskCoverage(_RankedErrors):
    """The risk–coverage curve; see `functional.risk_coverage`.

    Example:
        >>> import torch
        >>> metric = RiskCoverage()
        >>> metric.update(torch.tensor([[0.4, 0.6], [0.9, 0.1]]), torch.tensor([0, 0]))
        >>> metric.compute().risk.tolist()
        [0.0, 0.5]
    """

    def compute(self) -> RiskCoverageCurve:
        """The curve over all samples seen."""
        return self._curve()

    def plot(self, val: RiskCoverageCurve | None = None, ax: Any = None) -> Any:
        """Draw risk against coverage; returns the figure and the axes."""
        import matplotlib.pyplot as plt

        coverage, risk = (part.reshape(-1).cpu() for part in val or self.compute())
        fig, ax = plt.subplots() if ax is None else (ax.figure, ax)
        ax.plot(coverage, risk, label=f"AURC {risk.mean().item():.4f}")
        ax.set(xlim=(0, 1), xlabel="coverage", ylabel="risk (error rate)")
        ax.set_ylim(bottom=0)
        ax.legend()
        return fig, ax


class AURC(_RankedErrors):
    """Area under the risk–coverage curve; see `functional.aurc`.

    Example:
        >>> import torch
        >>> metric = AURC()
        >>> metric.update(torch.tensor([[0.4, 0.6], [0.9, 0.1]]), torch.tensor([0, 0]))
        >>> metric.compute().item()
        0.25
    """

    plot_lower_bound = 0.0

    def compute(self) -> Tensor:
        """The mean risk over all coverages, a float64 scalar."""
        return self._curve().risk.mean()
