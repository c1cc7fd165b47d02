"""Pictures for the page: which images a model is sure of, which not, and where it is sure and wrong."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from byov.data import ImageSet
from byov.prediction import Prediction

SHOWN = 12
SIDE = 96
"""The longest side of a picture on the page; what is smaller stays as it is, and the page enlarges it."""


def gallery(data: ImageSet, prediction: Prediction, shown: int = SHOWN) -> dict[str, Any]:
    """The `shown` images of least and of most entropy, and the mistakes of most confidence, as data URIs."""
    assert data.labels is not None
    assert prediction.entropy is not None
    confidence, predicted = prediction.mean.cpu().max(1)
    entropy, labels = prediction.entropy.cpu(), data.labels.cpu()
    wrong = predicted != labels
    order = entropy.argsort(stable=True)
    mistakes = wrong.nonzero()[:, 0]
    mistakes = mistakes[confidence[mistakes].argsort(descending=True, stable=True)]
    information = prediction.mutual_information

    def entry(i: int) -> dict[str, Any]:
        return {
            "index": i,
            "label": data.class_names[int(labels[i])],
            "predicted": data.class_names[int(predicted[i])],
            "correct": not bool(wrong[i]),
            "confidence": round(float(confidence[i]), 4),
            "entropy": round(float(entropy[i]), 4),
            "mutual_information": None if information is None else round(float(information[i]), 4),
            "image": data_uri(data.images[i]),
        }

    chosen = {"certain": order[:shown], "uncertain": order.flip(0)[:shown], "mistakes": mistakes[:shown]}
    found: dict[str, Any] = {name: [entry(int(i)) for i in indices] for name, indices in chosen.items()}
    return {**found, "wrong": int(wrong.sum()), "images": len(data)}


def data_uri(image: Tensor) -> str:
    """An image (C, H, W) in uint8 as an inline PNG, or WebP where it had to be made smaller."""
    pixels = image.cpu().permute(1, 2, 0)
    pixels = pixels[..., 0] if pixels.shape[2] == 1 else pixels
    picture = Image.fromarray(pixels.to(torch.uint8).contiguous().numpy())
    large = max(picture.size) > SIDE
    if large:
        picture.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return _inline(picture, "webp", quality=80) if large else _inline(picture, "png", optimize=True)


def figure_uri(path: Path, width: int = 1600) -> str | None:
    """The picture that a command has drawn beside its numbers, small enough for a page; None where there is none."""
    if not path.is_file():
        return None
    with Image.open(path) as picture:
        picture.thumbnail((width, width), Image.Resampling.LANCZOS)
        return _inline(picture.convert("RGB"), "webp", quality=82)


def _inline(picture: Image.Image, kind: str, **options: Any) -> str:
    content = BytesIO()
    picture.save(content, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(content.getvalue()).decode()}"
