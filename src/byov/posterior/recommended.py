"""What `bayesianize` does unless told."""

from __future__ import annotations

from typing import Literal, get_args

from byov.posterior.gaussian import Gaussian
from byov.posterior.select import Rules, output_layer

Recommended = Literal["scratch", "pretrained"]

RULES: dict[str, Rules] = {
    "scratch": Gaussian(relative=0.05),
    "pretrained": {output_layer: Gaussian(relative=0.05)},
}
"""For those who want q(θ) itself trained: from scratch every weight, and of a pretrained network the one layer that is
new, so that the features stay what they are. From scratch `byov.SWAG`, which is no family but follows a plain training,
was better on the clean rows of all four sets of results/defaults."""


def recommended(start: str) -> Rules:
    """Return the rules for a network that is trained from scratch, or for one that is fine-tuned."""
    if any(character in start for character in "*?[."):
        raise ValueError(f"A glob needs a family: give {{{start!r}: byov.Gaussian()}}.")
    if start not in get_args(Recommended):
        raise ValueError(
            f"bayesianize recommends rules for a network from 'scratch' or a 'pretrained' one, not for {start!r};"
            " a rule of your own is a family, or a mapping such as {'*': byov.Gaussian()}."
        )
    return RULES[start]
