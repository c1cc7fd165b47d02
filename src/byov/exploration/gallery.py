"""The images that a model is most and least certain of, with what it says of them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from byov.exploration.drawing import COLOURS, canvas, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        """The pixels as uint8 (C, H, W)."""
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
    order = torch.sort(uncertainty, stable=True).indices
    correct = (probs.argmax(1) == labels).double()[order]
    tenth = max(1, len(order) // 10)

    def shown(index: int) -> Shown:
        image, best = images[index].cpu(), int(probs[index].argmax())
        return Shown(
            index,
            float(f"{float(uncertainty[index]):.6g}"),
            class_names[int(labels[index])],
            class_names[best],
            float(f"{float(probs[index, best]):.6g}"),
            list(image.shape),
            base64.b64encode(image.contiguous().numpy().tobytes()).decode(),
        )

    return Gallery(
        measure,
        float(correct[:tenth].mean()),
        float(correct[-tenth:].mean()),
        [shown(int(i)) for i in order[:count]],
        [shown(int(i)) for i in order.flip(0)[:count]],
    )


@styled
def gallery_figure(found: Mapping[str, Gallery]) -> Figure:
    """For each run the least certain images above the most certain ones; a wrong prediction is named in orange."""

    columns = 12
    bands = [(run, title, shown) for run, g in found.items() for title, shown in _bands(g)]
    rows = sum(-(-len(shown) // columns) + 1 for _, _, shown in bands)
    made, [[axes]] = canvas(9.0, 0.95 * rows - 0.57 * len(bands))
    axes.axis("off")
    y = 0.0
    for run, title, shown in bands:
        name = f"{run}: {title}" if len(found) > 1 else title
        axes.text(-0.5, y, name, fontsize=9, fontweight="bold", va="center", clip_on=False)
        y += 0.48
        for i, item in enumerate(shown):
            row, column = divmod(i, columns)
            top = y + 1.3 * row
            pixels = item.array()
            picture = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)
            box = (column - 0.46, column + 0.46, top + 0.72, top - 0.2)
            axes.imshow(picture, cmap="gray", vmin=0, vmax=255, extent=box, interpolation="nearest")
            right = item.label == item.predicted
            words = item.label if right else f"{item.label}→{item.predicted}"
            axes.text(
                column, top + 0.76, words, ha="center", va="top", fontsize=6, color="0.25" if right else COLOURS[1]
            )
        y += 1.3 * -(-len(shown) // columns) + 0.1
    axes.set(xlim=(-0.55, columns - 0.45), ylim=(y - 0.2, -0.25), aspect="equal")
    return made


def _bands(g: Gallery) -> list[tuple[str, list[Shown]]]:
    def span(shown: list[Shown]) -> str:
        low, high = sorted((shown[0].uncertainty, shown[-1].uncertainty))
        return f"{g.measure} {low:.3g} … {high:.3g}"

    least = f"least certain ({span(g.least_certain)}; {100 * g.accuracy_least_certain:.1f} % of this tenth are right)"
    most = f"most certain ({span(g.most_certain)}; {100 * g.accuracy_most_certain:.1f} % of this tenth are right)"
    return [(least, g.least_certain), (most, g.most_certain)]
