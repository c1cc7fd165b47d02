"""Does the uncertainty tell foreign data from the data the model knows?

Scores are uncertainties: higher means more likely out of distribution. Out of distribution is the positive class.
"""

import math

import torch
from torch import Tensor

from byov.metrics.functional._checks import check_scores


def ood_auroc(uncertainty_in: Tensor, uncertainty_out: Tensor) -> Tensor:
    """Probability that a foreign sample is more uncertain than a known one, P(u_out > u_in) + ½ P(u_out = u_in).

    This is the area under the ROC curve by ranks (Mann–Whitney), ties at their midranks: 0.5 is chance, 1 separates.

    Args:
        uncertainty_in: (N,), finite scores of in-distribution samples.
        uncertainty_out: (M,), finite scores of out-of-distribution samples.

    Returns:
        A float64 scalar in 0..1.

    Example:
        >>> import torch
        >>> ood_auroc(torch.tensor([0.1, 0.2, 0.5]), torch.tensor([0.5, 0.9])).item()  # (2.5 + 3) / 6
        0.9166666666666666
    """
    inside = check_scores(uncertainty_in, "uncertainty_in")
    outside = check_scores(uncertainty_out, "uncertainty_out")
    _, group, size = torch.cat([inside, outside]).unique(return_inverse=True, return_counts=True)
    midrank = size.cumsum(0) - (size - 1).double() / 2
    lowest = len(outside) * (len(outside) + 1) / 2  # the rank sum if every foreign sample came first
    return (midrank[group[len(inside) :]].sum() - lowest) / (len(inside) * len(outside))


def fpr_at_tpr(uncertainty_in: Tensor, uncertainty_out: Tensor, tpr: float = 0.95) -> Tensor:
    """Fraction of known samples flagged as foreign by the strictest threshold that still flags `tpr` of the foreign.

    A sample is flagged when its uncertainty is at or above the threshold, which is the ⌈tpr·M⌉-th largest foreign
    score. (Papers that take the in-distribution class as positive report another number under the same name.)

    Args:
        uncertainty_in: (N,), finite scores of in-distribution samples.
        uncertainty_out: (M,), finite scores of out-of-distribution samples.
        tpr: the true-positive rate to reach, in (0, 1].

    Returns:
        A float64 scalar in 0..1; lower is better.

    Example:
        >>> import torch
        >>> inside, outside = torch.tensor([0.1, 0.2, 0.5, 0.7]), torch.tensor([0.4, 0.6, 0.8, 0.9])
        >>> fpr_at_tpr(inside, outside, tpr=0.75).item(), fpr95(inside, outside).item()
        (0.25, 0.5)
    """
    inside = check_scores(uncertainty_in, "uncertainty_in")
    outside = check_scores(uncertainty_out, "uncertainty_out")
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr must lie in (0, 1], got {tpr}.")
    flagged = math.ceil(tpr * len(outside) - 1e-9)  # 0.07 · 100 is 7.000000000000001
    threshold = outside.sort(descending=True).values[max(flagged, 1) - 1]
    return (inside >= threshold).double().mean()


def fpr95(uncertainty_in: Tensor, uncertainty_out: Tensor) -> Tensor:
    """False-positive rate at 95 % true positives: `fpr_at_tpr` with `tpr=0.95`.

    Example:
        >>> import torch
        >>> fpr95(torch.zeros(3), torch.ones(3)).item()
        0.0
    """
    return fpr_at_tpr(uncertainty_in, uncertainty_out, tpr=0.95)
