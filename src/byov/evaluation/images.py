"""The shifts of an evaluation, and what their strengths are on its images."""

from __future__ import annotations

import torch

from byov.data import ImageSet
from byov.data.augmentations import AUGMENTATIONS
from byov.data.corruptions import CORRUPTIONS
from byov.data.shift import SEVERITIES, SMALL_SIDE, Shift

SHIFTS: dict[str, dict[str, Shift]] = {"none": {}, "augmentations": AUGMENTATIONS, "corruptions": CORRUPTIONS}

CIFAR_SIDE = 32


def shifts_for(kind: str, data: ImageSet) -> tuple[dict[str, Shift], dict[str, str]]:
    """Return the shifts of a kind that are defined on these images, and for the others why they are not."""
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
    """Say whose strengths the corruptions have on images of this size."""
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
    """Read "1-5", "3" or "1,3,5" as whole numbers from 1 to 5, each once and in order."""
    found: set[int] = set()
    try:
        for part in text.split(","):
            low, dash, high = part.partition("-")
            levels = range(int(low), int(high if dash else low) + 1)
            found |= set(levels[: len(SEVERITIES) + 1]) or {0}  # one too many are as wrong as a billion
    except ValueError:
        found = {0}
    if not found <= set(SEVERITIES):
        raise ValueError(f"Severities run from 1 to 5, such as 1-5 or 1,3,5, not {text!r}.")
    return tuple(sorted(found))
