"""The images that a model is most and least certain of, with what it says of them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shown:
    """One image: its place in the set, what is true of it and what the model says, and its pixels themselves.

    `pixels` are the bytes of a uint8 array of `shape` (C, H, W), as base64: the figure needs no data set.
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
    """The most and the least certain images by a measure of uncertainty, each from its end inwards."""

    measure: str
    accuracy_most_certain: float
    """Of the tenth of the images that the model is most certain of."""
    accuracy_least_certain: float
    """Of the tenth that it is least certain of."""
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
    """Pick `count` images (uint8, (N, C, H, W)) from both ends of `uncertainty` (N,); ties in the images' order."""
    probs, uncertainty, labels = probs.cpu(), uncertainty.cpu(), labels.cpu()
    if not len(images) == len(labels) == len(probs) == len(uncertainty):
        sizes = f"{len(images)}, {len(labels)}, {len(probs)} and {len(uncertainty)}"
        raise ValueError(f"A gallery has a label, probabilities and an uncertainty for every image, not {sizes}.")
    if images.dtype != torch.uint8 or count < 1:
        raise ValueError("A gallery is of at least one uint8 image.")
    if not bool(uncertainty.isfinite().all()):
        raise ValueError("A gallery needs finite uncertainties.")
    order = certain_first(uncertainty)
    correct = (probs.argmax(1) == labels).double()[order]
    tenth = max(1, len(order) // 10)
    ends = [show(images, labels, class_names, probs, uncertainty, end[:count]) for end in (order, order.flip(0))]
    return Gallery(measure, float(correct[:tenth].mean()), float(correct[-tenth:].mean()), *ends)


def certain_first(uncertainty: Tensor) -> Tensor:
    """Return the images' places by growing uncertainty (N,); ties in the images' order."""
    return torch.sort(uncertainty, stable=True).indices


def confident_mistakes(probs: Tensor, labels: Tensor) -> Tensor:
    """Return the places of the images whose most probable class is not their label, the most confident first."""
    confidence, predicted = probs.max(1)
    wrong = (predicted != labels).nonzero()[:, 0]
    return wrong[confidence[wrong].argsort(descending=True, stable=True)]


def show(
    images: Tensor, labels: Tensor, class_names: Sequence[str], probs: Tensor, uncertainty: Tensor, places: Tensor
) -> list[Shown]:
    """Return the images at some places with what a model says of them; arguments as in `gallery`, on the CPU."""
    found = []
    for index in places.tolist():
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
