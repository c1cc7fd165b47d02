"""The objectives by name, for a recipe's `ssl.objective`."""

from __future__ import annotations

from byov.models.registry import resolve
from byov.ssl.barlow import BarlowTwins
from byov.ssl.byol import Bootstrap
from byov.ssl.dino import DINO
from byov.ssl.moco import MoCoV3
from byov.ssl.objective import Objective
from byov.ssl.simclr import SimCLR
from byov.ssl.simsiam import SimSiam
from byov.ssl.vicreg import VICReg

OBJECTIVES: dict[str, type[Objective]] = {
    "byol": Bootstrap,
    "simsiam": SimSiam,
    "simclr": SimCLR,
    "moco": MoCoV3,
    "barlow": BarlowTwins,
    "vicreg": VICReg,
    "dino": DINO,
}
"""Objectives that a recipe can select by name."""


def objective(name: str) -> type[Objective]:
    """Return the objective with this name, or your own as `python:module:Class`."""
    if name.startswith("python:"):
        found = resolve(name.removeprefix("python:"))
        if not (isinstance(found, type) and issubclass(found, Objective)):
            raise ValueError(f"{name} is not a subclass of byov.ssl.objective.Objective.")
        return found
    if name not in OBJECTIVES:
        raise ValueError(f"There is no objective called {name!r}: {', '.join(OBJECTIVES)}, or python:module:Class.")
    return OBJECTIVES[name]
