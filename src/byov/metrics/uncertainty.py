"""Out-of-distribution detection, selective prediction and retrieval over batches.

Ranks need the scores of all samples, and nearest neighbours all embeddings, so all of them are kept.
"""

from typing import Any

import torch
from torch import Tensor

from byov.metrics._shell import Samples, Value, figure_and_axes
from byov.metrics.functional import uncertainty as functional
from byov.metrics.functional._checks import check_scores


class _TwoSamples(Samples[Tensor]):
    """Uncertainties of in-distribution and out-of-distribution samples."""

    plot_upper_bound = 1.0

    def __init__(self, **kwargs: Any) -> None:
        kinds = {"inside": "in-distribution samples", "outside": "out-of-distribution samples"}
        super().__init__(kinds, **kwargs)

    def update(self, uncertainty: Tensor, is_ood: bool | Tensor) -> None:
        """Add a batch of scores (N,); `is_ood` is a bool for the whole batch or a bool tensor (N,)."""
        score = check_scores(uncertainty, "uncertainty")
        if not (isinstance(is_ood, Tensor) and is_ood.ndim):
            is_ood = torch.full_like(score, bool(is_ood), dtype=torch.bool)
        if is_ood.dtype != torch.bool or is_ood.shape != score.shape:
            given = f"{is_ood.dtype} of shape {tuple(is_ood.shape)}"
            raise ValueError(f"is_ood must be a bool or a bool tensor of shape {tuple(score.shape)}, got {given}.")
        self._add(score[~is_ood], score[is_ood])


class OODAUROC(_TwoSamples):
    """Area under the ROC curve of out-of-distribution detection; see `functional.ood_auroc`.

    Example:
        >>> metric = OODAUROC()
        >>> metric.update(torch.tensor([0.1, 0.2, 0.5]), is_ood=False)
        >>> metric.update(torch.tensor([0.5, 0.9]), is_ood=True)
        >>> round(metric.compute().item(), 6)
        0.916667
    """

    higher_is_better = True
    _value = staticmethod(functional.ood_auroc)


class FPR95(_TwoSamples):
    """Share of in-distribution samples flagged when 95 % of the OOD ones are flagged; see `functional.fpr_at_tpr`.

    Example:
        >>> scores, is_ood = torch.tensor([0.1, 0.2, 0.5, 0.4, 0.7]), torch.tensor([False, False, False, True, True])
        >>> round(FPR95()(scores, is_ood).item(), 6)
        0.333333
    """

    _value = staticmethod(functional.fpr95)


class _RankedErrors(Samples[Value]):
    """The uncertainty and the 0/1 error of every sample."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__({"uncertainty": "samples", "error": "samples"}, **kwargs)

    def update(self, probs: Tensor, labels: Tensor, uncertainty: Tensor | None = None) -> None:
        """Add a batch: probs (N, C), labels (N,), and any score (N,), by default 1 − max_c p(c)."""
        self._add(*functional.uncertain_errors(probs, labels, uncertainty))


class RiskCoverage(_RankedErrors[functional.RiskCoverageCurve]):
    """The risk–coverage curve; see `functional.risk_coverage`.

    Example:
        >>> RiskCoverage()(torch.tensor([[0.4, 0.6], [0.9, 0.1]]), torch.tensor([0, 0])).risk.tolist()
        [0.0, 0.5]
    """

    plot_lower_bound = None
    _value = staticmethod(functional.curve_of_errors)

    def plot(self, val: functional.RiskCoverageCurve | None = None, ax: Any = None) -> Any:
        """Draw risk against coverage; return the figure and the axes."""
        coverage, risk = (part.reshape(-1).cpu() for part in val or self.compute())
        fig, ax = figure_and_axes(ax)
        ax.plot(coverage, risk, label=f"AURC {risk.mean().item():.4f}")
        ax.set(xlim=(0, 1), xlabel="coverage", ylabel="risk (error rate)")
        ax.set_ylim(bottom=0)
        ax.legend()
        return fig, ax


class AURC(_RankedErrors[Tensor]):
    """Area under the risk–coverage curve, (1/N) Σᵢ risk(i/N); see `functional.aurc`.

    Example:
        >>> AURC()(torch.tensor([[0.4, 0.6], [0.9, 0.1]]), torch.tensor([0, 0])).item()
        0.25
    """

    def _value(self, uncertainty: Tensor, error: Tensor) -> Tensor:
        return functional.curve_of_errors(uncertainty, error).risk.mean()


class _Retrieval(Samples[Tensor]):
    """Embeddings, their widths and their labels, after any further states."""

    plot_upper_bound = 1.0
    higher_is_better = True

    def __init__(self, *first: str, **kwargs: Any) -> None:
        super().__init__(dict.fromkeys((*first, "embedding", "width", "label"), "samples"), **kwargs)

    def _keep(self, embeddings: Tensor, labels: Tensor, *first: Tensor) -> None:
        # Flat, because torchmetrics gathers the states of a process without data as (0,), and the shapes must fit.
        width = torch.full((len(embeddings),), embeddings.shape[1], device=embeddings.device)
        self._add(*first, embeddings.flatten(), width, labels)

    @staticmethod
    def _whole(embedding: Tensor, width: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings (N, D) and labels (N,) of all batches and processes."""
        if len(widths := width.unique()) > 1:
            raise ValueError(f"All embeddings must have the same width, got {', '.join(f'{w:.0f}' for w in widths)}.")
        return embedding.view(len(label), -1), label.long()


class RecallAt1(_Retrieval):
    """The share of samples whose nearest neighbour has the same class; see `functional.recall_at_1`.

    Example:
        >>> metric = RecallAt1()
        >>> metric.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
        >>> metric.update(torch.tensor([[2.0, 0.1], [0.1, 3.0]]), torch.tensor([0, 2]))
        >>> metric.compute().item()
        0.5
    """

    def update(self, embeddings: Tensor, labels: Tensor) -> None:
        """Add a batch: embeddings (N, D), labels (N,)."""
        functional.check_embeddings(embeddings, labels)
        self._keep(embeddings, labels)

    def _value(self, *states: Tensor) -> Tensor:
        return functional.recall_at_1(*self._whole(*states))


class RAUROC(_Retrieval):
    """How well uncertainty detects samples whose nearest neighbour has another class; see `functional.r_auroc`.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 3.0]])
        >>> RAUROC()(torch.tensor([0.1, 0.3, 0.2, 0.4]), embeddings, torch.tensor([0, 0, 1, 2])).item()
        0.75
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("uncertainty", **kwargs)

    def update(self, uncertainty: Tensor, embeddings: Tensor, labels: Tensor) -> None:
        """Add a batch: uncertainty (N,), embeddings (N, D), labels (N,)."""
        functional.check_embeddings(embeddings, labels)
        self._keep(embeddings, labels, check_scores(uncertainty, "uncertainty", samples=len(embeddings)))

    def _value(self, uncertainty: Tensor, *states: Tensor) -> Tensor:
        return functional.r_auroc(uncertainty, *self._whole(*states))
