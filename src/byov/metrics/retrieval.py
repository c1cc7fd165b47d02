"""R@1 and R-AUROC over batches. A nearest neighbour is looked for among all samples, so every embedding is kept."""

from typing import Any

import torch
from torch import Tensor

from byov.metrics._shell import Samples
from byov.metrics.functional import retrieval as functional
from byov.metrics.functional._checks import check_scores


class _Retrieval(Samples[Tensor]):
    """Embeddings, their widths and their labels, and further kinds of numbers in front."""

    plot_upper_bound = 1.0
    higher_is_better = True

    def __init__(self, *first: str, **kwargs: Any) -> None:
        super().__init__(dict.fromkeys((*first, "embedding", "width", "label"), "samples"), **kwargs)

    def _keep(self, embeddings: Tensor, labels: Tensor, *first: Tensor) -> None:
        # Flat: torchmetrics gathers the states of a process without data as (0,), which has to fit.
        width = torch.full((len(embeddings),), embeddings.shape[1], device=embeddings.device)
        self._add(*first, embeddings.flatten(), width, labels)

    @staticmethod
    def _whole(embedding: Tensor, width: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings (N, D) and labels (N,) of all batches and processes."""
        if len(widths := width.unique()) > 1:
            raise ValueError(f"All embeddings must have one width, got {', '.join(f'{w:.0f}' for w in widths)}.")
        return embedding.view(len(label), -1), label.long()


class RecallAt1(_Retrieval):
    """The share of samples whose nearest neighbour has their class; see `functional.recall_at_1`.

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
    """How well uncertainty tells samples with a foreign nearest neighbour; see `functional.r_auroc`.

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
