"""Uncertainty in nats, and its uses: to detect out-of-distribution data and wrong predictions.

Total = aleatoric + epistemic: entropy(mean) = expected entropy + mutual information. In out-of-distribution (OOD)
detection a higher score means more likely OOD, and OOD is the positive class. In selective prediction the least certain
samples are set aside. In retrieval (Kirchhof et al. 2023, "URL") an embedding is right if the nearest neighbour of a
sample among all others, by cosine similarity, has the same class.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from byov.metrics.functional._checks import (
    check_classification,
    check_finite,
    check_integers,
    check_probs,
    check_real,
    check_scores,
)

CHUNK = 1024
"""Rows of the similarity matrix computed at a time: memory is CHUNK · N, not N²."""


class RiskCoverageCurve(NamedTuple):
    """Risk at every coverage 1/N, 2/N, …, 1."""

    coverage: Tensor
    """(N,), the fraction of samples kept, the most certain first."""
    risk: Tensor
    """(N,), the error rate among them."""


def entropy(probs: Tensor) -> Tensor:
    """Return the entropy (N,) of each forecast, H(p) = −Σ_c p(c) log p(c), with 0 log 0 = 0.

    Example:
        >>> [round(h, 6) for h in entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()]
        [0.693147, 0.0]
    """
    check_probs(probs)
    return torch.special.entr(probs.double()).sum(-1)


def mutual_information(draws: Tensor) -> Tensor:
    """Return the mutual information (N,) of label and weights, H(mean of the draws) − mean of H(draws).

    `draws` is (S, N, C), the probabilities under each of S draws; the result lies in 0..log min(S, C).

    Example:
        >>> draws = torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])
        >>> [round(i, 6) for i in mutual_information(draws).tolist()]
        [0.693147, 0.0]
    """
    check_probs(draws, dims=3, name="draws")
    draws = draws.double()
    total, aleatoric = torch.special.entr(draws.mean(0)).sum(-1), torch.special.entr(draws).sum(-1).mean(0)
    return (total - aleatoric).clamp_min(0)  # at least 0 by Jensen's inequality, except for rounding


def ood_auroc(uncertainty_in: Tensor, uncertainty_out: Tensor) -> Tensor:
    """Return the area under the ROC curve of OOD detection, P(u_out > u_in) + ½ P(u_out = u_in).

    It is computed from ranks (Mann–Whitney), with ties at their midranks: 0.5 is chance, 1 is perfect separation. The
    scores are (N,) for in-distribution and (M,) for out-of-distribution samples, all finite.

    Example:
        >>> ood_auroc(torch.tensor([0.1, 0.2, 0.5]), torch.tensor([0.5, 0.9])).item()  # (2.5 + 3) / 6
        0.9166666666666666
    """
    inside = check_scores(uncertainty_in, "uncertainty_in")
    outside = check_scores(uncertainty_out, "uncertainty_out")
    _, group, size = torch.cat([inside, outside]).unique(return_inverse=True, return_counts=True)
    midrank = size.cumsum(0) - (size - 1).double() / 2
    lowest = len(outside) * (len(outside) + 1) / 2  # the rank sum if every OOD sample came first
    return (midrank[group[len(inside) :]].sum() - lowest) / (len(inside) * len(outside))


def fpr_at_tpr(uncertainty_in: Tensor, uncertainty_out: Tensor, tpr: float = 0.95) -> Tensor:
    """Return the fraction of in-distribution samples flagged by the highest threshold that flags `tpr` of the OOD ones.

    A sample is flagged if its uncertainty is at or above the threshold, which is the ⌈tpr·M⌉-th largest OOD score;
    `tpr` lies in (0, 1]. (Papers that take the in-distribution class as positive report a different number under the
    same name.)

    Example:
        >>> inside, outside = torch.tensor([0.1, 0.2, 0.5, 0.7]), torch.tensor([0.4, 0.6, 0.8, 0.9])
        >>> fpr_at_tpr(inside, outside, tpr=0.75).item()
        0.25
    """
    inside = check_scores(uncertainty_in, "uncertainty_in")
    outside = check_scores(uncertainty_out, "uncertainty_out")
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr must lie in (0, 1], got {tpr}.")
    flagged = math.ceil(tpr * len(outside) - 1e-9)  # 0.07 · 100 is 7.000000000000001
    threshold = outside.sort(descending=True).values[max(flagged, 1) - 1]
    return (inside >= threshold).double().mean()


def fpr95(uncertainty_in: Tensor, uncertainty_out: Tensor) -> Tensor:
    """Return the false-positive rate at 95 % true positives: `fpr_at_tpr` with `tpr=0.95`.

    Example:
        >>> fpr95(torch.zeros(3), torch.ones(3)).item()
        0.0
    """
    return fpr_at_tpr(uncertainty_in, uncertainty_out, tpr=0.95)


def risk_coverage(probs: Tensor, labels: Tensor, uncertainty: Tensor | None = None) -> RiskCoverageCurve:
    """Return the error rate of the i most certain samples, for i = 1..N.

        risk(i/N) = (1/i) Σ_{j among the i least uncertain} 1[argmax p_j ≠ y_j]

    Samples of equal uncertainty have no order. Each counts with the mean error of its group, which is the expectation
    over all orders, so the curve does not depend on how the data are sorted. `uncertainty` is any finite score (N,),
    higher is less certain (entropy, mutual information, …); the default is 1 − max_c p(c).

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
        >>> curve = risk_coverage(probs, torch.tensor([0, 0, 1, 0]))
        >>> curve.coverage.tolist(), curve.risk.tolist()
        ([0.25, 0.5, 0.75, 1.0], [0.0, 0.0, 0.0, 0.25])
    """
    return curve_of_errors(*uncertain_errors(probs, labels, uncertainty))


def aurc(probs: Tensor, labels: Tensor, uncertainty: Tensor | None = None) -> Tensor:
    """Return the area under the curve of `risk_coverage`, (1/N) Σᵢ risk(i/N): the mean risk over all coverages.

    An uninformative score gives the error rate itself.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.4, 0.6]])
        >>> labels = torch.tensor([0, 0, 1, 0])
        >>> aurc(probs, labels).item(), aurc(probs, labels, uncertainty=torch.zeros(4)).item()
        (0.0625, 0.25)
    """
    return risk_coverage(probs, labels, uncertainty).risk.mean()


def uncertain_errors(probs: Tensor, labels: Tensor, uncertainty: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the uncertainty and the 0/1 error of each sample, in float64."""
    labels = check_classification(probs, labels)
    confidence, predicted = probs.max(1)
    if uncertainty is None:
        uncertainty = 1 - confidence.double()
    else:
        uncertainty = check_scores(uncertainty, "uncertainty", samples=len(labels))
    return uncertainty, (predicted != labels).double()


def curve_of_errors(uncertainty: Tensor, error: Tensor) -> RiskCoverageCurve:
    """Compute the risk–coverage curve from one uncertainty and one loss per sample."""
    _, group, size = uncertainty.unique(return_inverse=True, return_counts=True)
    mean = error.new_zeros(len(size)).index_add_(0, group, error) / size
    kept = torch.arange(1, len(error) + 1, dtype=error.dtype, device=error.device)
    return RiskCoverageCurve(coverage=kept / len(error), risk=mean.repeat_interleave(size).cumsum(0) / kept)


def recall_at_1(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return R@1, the share of samples whose nearest neighbour has the same class.

        R@1 = (1/N) Σᵢ 1[y_n(i) = yᵢ],   n(i) = argmax_{j ≠ i} cos(eᵢ, eⱼ)

    `embeddings` is (N, D) with N ≥ 2, not necessarily normalised; `labels` is (N,), any integers. Among equally near
    neighbours the first one counts.

    Example:
        >>> embeddings = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 3.0]])
        >>> recall_at_1(embeddings, torch.tensor([0, 0, 1, 2])).item()
        0.5
    """
    return 1 - retrieval_errors(embeddings, labels).mean()


def r_auroc(uncertainty: Tensor, embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return R-AUROC: how well uncertainty detects samples whose nearest neighbour has another class.

        P(u_wrong > u_right) + ½ P(u_wrong = u_right)

    over pairs of a wrong sample, whose nearest neighbour as in `recall_at_1` has another class, and a right one, where
    it has the same. 0.5 is chance; 1 means that every right sample is more certain than every wrong one. `uncertainty`
    is any finite score (N,), higher is less certain. If all neighbours are right, or all wrong, R-AUROC is undefined
    and a ValueError is raised.

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
    units = normalize(embeddings.double(), dim=1)
    nearest = []
    for start in range(0, len(units), CHUNK):
        similarity = units[start : start + CHUNK] @ units.T
        similarity.diagonal(start).fill_(-torch.inf)  # a sample is not its own neighbour
        nearest.append(similarity.argmax(1))
    return (labels[torch.cat(nearest)] != labels).double()


def auroc_of_errors(uncertainty: Tensor, wrong: Tensor) -> Tensor:
    """Return the AUROC of uncertainty (N,) as a detector of errors, which are 1 in `wrong` (N,)."""
    errors = int(wrong.sum())
    if errors in (0, len(wrong)):
        which = "wrong" if errors else "right"
        raise ValueError(f"R-AUROC needs right and wrong neighbours, but all {len(wrong)} are {which}.")
    return ood_auroc(uncertainty[wrong == 0], uncertainty[wrong == 1])


def check_embeddings(embeddings: Tensor, labels: Tensor) -> None:
    """Raise unless `embeddings` are finite (N, D), with an integer label for each."""
    check_real(embeddings, "embeddings")
    if embeddings.ndim != 2:
        raise ValueError(f"embeddings must have shape (N, D), got {tuple(embeddings.shape)}.")
    check_finite(embeddings, "embeddings")
    check_integers(labels, embeddings, "embeddings")
