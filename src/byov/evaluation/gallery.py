"""The images that a model is most and least certain of, with its predictions."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shown:
    """One image: its index in the dataset, its label and prediction, and its pixels.

    `pixels` holds a uint8 array of `shape` (C, H, W) in base64, so that the figure does not need the dataset.
    """

    index: int
    uncertainty: float
    label: str
    predicted: str
    confidence: float
    shape: list[int]
    pixels: str

    def array(self) -> Tensor:
        """Return the pixels as uint8 (C, H, W)."""
        return torch.tensor(list(base64.b64decode(self.pixels)), dtype=torch.uint8).view(self.shape)


@dataclass(frozen=True)
class Gallery:
    """The most and the least certain images by a measure of uncertainty, the most extreme first."""

    measure: str
    accuracy_most_certain: float
    """The accuracy on the tenth of the images with the least uncertainty."""
    accuracy_least_certain: float
    """The accuracy on the tenth with the most uncertainty."""
    most_certain: list[Shown]
    least_certain: list[Shown]


def gallery(
    images: Tensor,
    labels: Tensor,
    class_names: Sequence[str],
    probs: Tensor,
    uncertainty: Tensor,
    measure: str = "mutual information",
    count: int = 24,
) -> Gallery:
    """Pick `count` images (uint8, (N, C, H, W)) from each end of `uncertainty` (N,); ties keep the images' order."""
    probs, uncertainty, labels = probs.cpu(), uncertainty.cpu(), labels.cpu()
    if not len(images) == len(labels) == len(probs) == len(uncertainty):
        sizes = f"{len(images)}, {len(labels)}, {len(probs)} and {len(uncertainty)}"
        raise ValueError(f"A gallery needs one label, prediction and uncertainty per image; their numbers are {sizes}.")
    if images.dtype != torch.uint8 or count < 1:
        raise ValueError("A gallery needs uint8 images, and a count of at least 1.")
    if not bool(uncertainty.isfinite().all()):
        raise ValueError("A gallery needs finite uncertainties.")
    order = uncertainty.argsort(stable=True)
    correct = (probs.argmax(1) == labels).double()[order]
    tenth = max(1, len(order) // 10)
    ends = [show(images, labels, class_names, probs, uncertainty, end[:count]) for end in (order, order.flip(0))]
    return Gallery(measure, float(correct[:tenth].mean()), float(correct[-tenth:].mean()), *ends)


def confident_mistakes(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the indices of the misclassified images, the most confident first."""
    confidence, predicted = probs.max(1)
    wrong = (predicted != labels).nonzero()[:, 0]
    return wrong[confidence[wrong].argsort(descending=True, stable=True)]


def show(
    images: Tensor, labels: Tensor, class_names: Sequence[str], probs: Tensor, uncertainty: Tensor, indices: Tensor
) -> list[Shown]:
    """Return the images at some indices with their predictions; arguments as in `gallery`, on the CPU."""
    found = []
    for index in indices.tolist():
        image, best = images[index].cpu(), int(probs[index].argmax())
        shown = Shown(
            index,
            float(f"{float(uncertainty[index]):.6g}"),
            class_names[int(labels[index])],
            class_names[best],
            float(f"{float(probs[index, best]):.6g}"),
            list(image.shape),
            base64.b64encode(image.contiguous().numpy().tobytes()).decode(),
        )
        found.append(shown)
    return found
