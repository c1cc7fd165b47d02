"""Errors of scores by a bootstrap over the test images: how another test set would differ."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from byov.metrics.functional.calibration import equal_width, top_label

RESAMPLES = 1000


class Resamples:
    """How often each of n images is drawn in each resample; the same for all that is read on them, which are pairs."""

    def __init__(self, images: int, seed: int = 0, count: int = RESAMPLES) -> None:
        generator = Generator().manual_seed(seed)
        drawn = (torch.randint(images, (images,), generator=generator) for _ in range(count))
        self.counts = torch.stack([torch.bincount(each, minlength=images).float() for each in drawn])

    def scores(self, probs: Tensor, labels: Tensor, bins: int = 15) -> dict[str, Tensor]:
        """Return top-1, ECE and NLL of each resample, (B,), of class probabilities (N, C)."""
        probs, labels = probs.cpu(), labels.cpu()
        confidence, correct = top_label(probs, labels)
        loss = -probs.gather(1, labels[:, None])[:, 0].clamp_min(torch.finfo(probs.dtype).tiny).log()
        member = torch.nn.functional.one_hot(equal_width(confidence, bins), bins).float()
        gaps = member * (confidence - correct.float())[:, None]
        found = self.counts @ torch.cat([correct.float()[:, None], loss[:, None].float(), gaps.float()], 1)
        found = found / len(labels)
        return {"top1": found[:, 0], "nll": found[:, 1], "ece": found[:, 2:].abs().sum(1)}


def error(resampled: Tensor) -> float:
    """Return the standard error: the standard deviation over resamples."""
    return resampled.double().std().item()
