"""Out-of-distribution detection over batches. Ranks need every score, so one number per sample is kept."""

from typing import Any

import torch
from torch import Tensor

from byov.metrics._shell import Shell
from byov.metrics.functional._checks import check_scores
from byov.metrics.functional.ood import fpr95, ood_auroc


class _TwoSamples(Shell):
    """Uncertainties of known and of foreign samples."""

    plot_lower_bound, plot_upper_bound = 0.0, 1.0
    inside: list[Tensor]
    outside: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._list_state("inside")
        self._list_state("outside")

    def update(self, uncertainty: Tensor, is_ood: bool | Tensor) -> None:
        """Add a batch of scores (N,), all known or all foreign (a bool), or mixed (a bool tensor (N,))."""
        score = check_scores(uncertainty, "uncertainty")
        if isinstance(is_ood, Tensor) and is_ood.ndim:
            if is_ood.dtype != torch.bool or is_ood.shape != score.shape:
                raise ValueError(
                    f"is_ood must be a bool or a bool tensor of shape {tuple(score.shape)}, "
                    f"got {is_ood.dtype} of shape {tuple(is_ood.shape)}."
                )
            self.inside.append(score[~is_ood])
            self.outside.append(score[is_ood])
        else:
            (self.outside if is_ood else self.inside).append(score)

    def _samples(self) -> tuple[Tensor, Tensor]:
        return self._joined("inside", "in-distribution samples"), self._joined("outside", "out-of-distribution samples")


class OODAUROC(_TwoSamples):
    """Area under the ROC curve of telling foreign from known; see `functional.ood_auroc`.

    Example:
        >>> import torch
        >>> metric = OODAUROC()
        >>> metric.update(torch.tensor([0.1, 0.2, 0.5]), is_ood=False)
        >>> metric.update(torch.tensor([0.5, 0.9]), is_ood=True)
        >>> round(metric.compute().item(), 6)
        0.916667
    """

    higher_is_better = True

    def compute(self) -> Tensor:
        """The AUROC of all samples seen, a float64 scalar."""
        return ood_auroc(*self._samples())


class FPR95(_TwoSamples):
    """Known samples flagged when 95 % of the foreign are flagged; see `functional.fpr_at_tpr`.

    Example:
        >>> import torch
        >>> metric = FPR95()
        >>> metric.update(torch.tensor([0.1, 0.2, 0.5, 0.4, 0.7]), torch.tensor([False, False, False, True, True]))
        >>> round(metric.compute().item(), 6)
        0.333333
    """

    higher_is_better = False

    def compute(self) -> Tensor:
        """The false-positive rate over all samples seen, a float64 scalar."""
        return fpr95(*self._samples())
