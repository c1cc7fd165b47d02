"""The images of an evaluation: labelled, in memory, in the size a model takes."""

from __future__ import annotations

from pathlib import Path

import torch

from byov.data import Batches, FolderSet, ImageSet, load
from byov.data.augmentations import AUGMENTATIONS
from byov.data.corruptions import CORRUPTIONS
from byov.data.shift import SEVERITIES, SMALL_SIDE, Shift

SHIFTS: dict[str, dict[str, Shift]] = {"none": {}, "augmentations": AUGMENTATIONS, "corruptions": CORRUPTIONS}

CIFAR_SIDE = 32


def labelled(
    name: str,
    split: str,
    root: str | Path | None = None,
    channels: int | None = None,
    image_size: int | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> ImageSet:
    """A split of a named set with its labels; `limit` takes that many of its images at random, in their order."""
    if limit is not None and limit < 1:
        raise ValueError(f"An evaluation needs at least one image, not a limit of {limit}.")
    streamed = name == "imagenet" or name.startswith("folder:")
    data = load(name, split, root, image_size=image_size if streamed else None, channels=channels)
    if data.labels is None:
        raise ValueError(f"The {split} split of {name} has no labels, and an evaluation needs one for every image.")
    if isinstance(data, ImageSet) and image_size not in (None, data.image_size):
        data = data.resized(image_size)
    if limit is not None and limit < len(data):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
        data = data.subset(order[:limit].sort().values)
    return _in_memory(data)


def _in_memory(data: ImageSet | FolderSet) -> ImageSet:
    """The images of a folder as one tensor, but for those that cannot be read."""
    if isinstance(data, ImageSet):
        return data
    batches = list(Batches(data, 256, shuffle=False, drop_last=False))
    images, labels = (torch.cat([getattr(batch, part) for batch in batches]) for part in ("images", "labels"))
    return ImageSet(data.name, images, labels, data.class_names)


def shifts_for(kind: str, data: ImageSet) -> tuple[dict[str, Shift], dict[str, str]]:
    """The shifts of a kind that are defined on these images, and for the others why they are not."""
    if kind not in SHIFTS:
        raise ValueError(f"A shift is {', '.join(SHIFTS)}, not {kind!r}.")
    defined, left_out = {}, {}
    probe = data.images[:1].float() / 255
    for name, shift in SHIFTS[kind].items():
        try:
            shift(probe, max(SEVERITIES), torch.Generator(probe.device).manual_seed(0))
        except (ValueError, RuntimeError) as error:  # an image too small for a filter is told by torch
            left_out[name] = str(error).splitlines()[0]
        else:
            defined[name] = shift
    return defined, left_out


def strength_note(kind: str, data: ImageSet) -> str:
    """Whose strengths the corruptions have on images of this size."""
    side = min(data.images.shape[2:])
    if kind != "corruptions":
        return ""
    if side > SMALL_SIDE:
        return "Corruptions have ImageNet-C's strengths."
    note = "Corruptions have CIFAR-10-C's strengths"
    return (
        f"{note}." if side >= CIFAR_SIDE else f"{note}, which are made for {CIFAR_SIDE} pixels and harsher on {side}."
    )


def parse_severities(text: str) -> tuple[int, ...]:
    """ "1-5", "3" or "1,3,5" as whole numbers from 1 to 5, each once and in order."""
    found: set[int] = set()
    try:
        for part in text.split(","):
            low, dash, high = part.partition("-")
            found |= set(range(int(low), int(high if dash else low) + 1)) or {0}
    except ValueError:
        found = {0}
    if not found <= set(SEVERITIES):
        raise ValueError(f"Severities run from 1 to 5, such as 1-5 or 1,3,5, not {text!r}.")
    return tuple(sorted(found))
