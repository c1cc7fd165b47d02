"""What an embedding is good for without a classifier, and whether its uncertainty knows: R@1 and R-AUROC.

The metrics of the uncertainty-aware representation learning benchmark (Kirchhof et al. 2023, "URL"). Each sample's
nearest neighbour is looked for among all others, by cosine: where it has the sample's class, the embedding was right.
"""

import torch
from torch import Tensor
from torch.nn import functional

from byov.metrics.functional._checks import INTEGER, check_finite, check_real, check_scores
from byov.metrics.functional.uncertainty import ood_auroc

CHUNK = 1024
"""Rows of the similarity matrix at a time: memory is CHUNK · N, not N²."""


def recall_at_1(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return R@1, the share of samples whose nearest neighbour has their class.

        R@1 = (1/N) Σᵢ 1[y_n(i) = yᵢ],   n(i) = argmax_{j ≠ i} cos(eᵢ, eⱼ)

    `embeddings` is (N, D) with N ≥ 2, not normalised; `labels` is (N,), any integers. Of equally near neighbours the
    first one counts.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 3.0]])
        >>> recall_at_1(embeddings, torch.tensor([0, 0, 1, 2])).item()
        0.5
    """
    return 1 - retrieval_errors(embeddings, labels).mean()


def r_auroc(uncertainty: Tensor, embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return R-AUROC: how well uncertainty tells samples with a foreign nearest neighbour from the others.

        P(u_wrong > u_right) + ½ P(u_wrong = u_right)

    over pairs of a sample whose nearest neighbour, as in `recall_at_1`, has another class, and one whose has the same.
    0.5 is chance; 1 means that every right sample is surer than every wrong one. `uncertainty` is any finite score
    (N,), higher is less certain. Where all neighbours are right, or all wrong, there is nothing to tell: a ValueError.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 3.0]])
        >>> r_auroc(torch.tensor([0.1, 0.3, 0.2, 0.4]), embeddings, torch.tensor([0, 0, 1, 2])).item()
        0.75
    """
    check_scores(uncertainty, "uncertainty")
    wrong = retrieval_errors(embeddings, labels)
    return auroc_of_errors(check_scores(uncertainty, "uncertainty", samples=len(wrong)), wrong)


def retrieval_errors(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return 1 for each sample whose nearest neighbour has another class, else 0: (N,) in float64."""
    check_embeddings(embeddings, labels)
    if len(embeddings) < 2:
        raise ValueError("A nearest neighbour needs at least two samples, got 1.")
    units = functional.normalize(embeddings.double(), dim=1)
    nearest = []
    for start in range(0, len(units), CHUNK):
        similarity = units[start : start + CHUNK] @ units.T
        similarity.diagonal(start).fill_(-torch.inf)  # nobody is a neighbour of their own
        nearest.append(similarity.argmax(1))
    return (labels[torch.cat(nearest)] != labels).double()


def auroc_of_errors(uncertainty: Tensor, wrong: Tensor) -> Tensor:
    """Return the AUROC with which uncertainty (N,) tells errors, 1 in `wrong` (N,), from what is right, 0."""
    errors = int(wrong.sum())
    if errors in (0, len(wrong)):
        which = "wrong" if errors else "right"
        raise ValueError(f"R-AUROC needs right and wrong neighbours, but all {len(wrong)} are {which}.")
    return ood_auroc(uncertainty[wrong == 0], uncertainty[wrong == 1])


def check_embeddings(embeddings: Tensor, labels: Tensor) -> None:
    """Refuse anything but finite embeddings (N, D) with an integer label for each."""
    check_real(embeddings, "embeddings")
    if embeddings.ndim != 2:
        raise ValueError(f"embeddings must have shape (N, D), got {tuple(embeddings.shape)}.")
    check_finite(embeddings, "embeddings")
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels must be a torch tensor, got {type(labels).__name__}.")
    if labels.dtype not in INTEGER:
        raise ValueError(f"labels must have an integer dtype, got {labels.dtype}.")
    if labels.shape != embeddings.shape[:1]:
        raise ValueError(f"labels must have shape ({len(embeddings)},), got {tuple(labels.shape)}.")
    if labels.device != embeddings.device:
        raise ValueError(f"labels are on {labels.device} but embeddings are on {embeddings.device}.")
