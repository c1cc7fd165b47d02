"""Total, aleatoric and epistemic uncertainty of a Monte-Carlo prediction, in nats.

entropy(mean) = expected entropy + mutual information: total = aleatoric + epistemic.
"""

import torch
from torch import Tensor

from byov.metrics.functional._checks import check_probs


def entropy(probs: Tensor) -> Tensor:
    """Entropy of each forecast, H(p) = −Σ_c p(c) log p(c), with 0 log 0 = 0.

    Args:
        probs: (N, C), each row on the simplex.

    Returns:
        (N,), float64, in 0..log C.

    Example:
        >>> import torch
        >>> [round(h, 6) for h in entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()]
        [0.693147, 0.0]
    """
    check_probs(probs)
    return torch.special.entr(probs.double()).sum(-1)


def mutual_information(draws: Tensor) -> Tensor:
    """Mutual information of label and weights, H(mean of the draws) − mean of H(draws).

    Args:
        draws: (S, N, C), the probabilities under each of S draws from the posterior.

    Returns:
        (N,), float64, in 0..log min(S, C).

    Example:
        >>> import torch
        >>> draws = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])
        >>> [round(i, 6) for i in mutual_information(draws).tolist()]
        [0.693147, 0.0]
    """
    check_probs(draws, dims=3, name="draws")
    draws = draws.double()
    total, aleatoric = torch.special.entr(draws.mean(0)).sum(-1), torch.special.entr(draws).sum(-1).mean(0)
    return (total - aleatoric).clamp_min(0)  # Jensen's inequality, but for rounding
