"""The recommended rules of `bayesianize`."""

from __future__ import annotations

from typing import Literal, get_args

from byov.posterior.gaussian import Gaussian
from byov.posterior.select import Rules, output_layer

Recommended = Literal["scratch", "pretrained"]

RULES: dict[str, Rules] = {
    "scratch": Gaussian(relative=0.05),
    "pretrained": {output_layer: Gaussian(relative=0.05)},
}
"""Rules for training q(θ) itself: every weight when training from scratch; only the new layer of a pretrained network,
so that its features do not change. From scratch `byov.SWAG`, which is not a family but follows plain training, was
better on the clean rows of all six sets of results/defaults."""


def recommended(start: str) -> Rules:
    """Return the rules for a network that is trained from scratch, or for one that is fine-tuned."""
    if any(character in start for character in "*?[."):
        raise ValueError(f"A glob needs a family: use {{{start!r}: byov.Gaussian()}}.")
    if start not in get_args(Recommended):
        raise ValueError(
            f"bayesianize has recommended rules for 'scratch' and 'pretrained', not for {start!r};"
            " your own rules are a family, or a mapping such as {'*': byov.Gaussian()}."
        )
    return RULES[start]
