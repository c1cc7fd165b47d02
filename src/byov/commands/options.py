"""Options that several commands have, declared once, and the panels that --help shows them in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer


def panel(name: str | None) -> Callable[..., Any]:
    """Return what declares an option in a panel: `data("Read this split.", "--split")`, and typer's own settings."""
    return lambda help, *names, **settings: typer.Option(*names, help=help, rich_help_panel=name, **settings)


plain, data, draws, output, machine = map(panel, (None, "Data", "Draws and probe", "Output", "Machine"))

Root = Annotated[Path | None, data("Look for the data sets in this folder.")]
Split = Annotated[str, data("Read this split.")]
Data = Annotated[str | None, data("Read this data set, not the run's own.")]
TrainLimit = Annotated[int | None, data("Fit a probe on this many training images.")]
ImageSize = Annotated[int | None, data("Resize the images for a python: network.")]
Channels = Annotated[int | None, data("Give the images 1 or 3 channels, for a python: network.")]
Severities = Annotated[str, data("Apply the shifts at these severities, such as 1-5 or 1,3,5.")]

MOST_DRAWS = 10**6
"""More would not end, nor tell more."""
Samples = Annotated[int, draws("Read under this many draws of the posterior.", max=MOST_DRAWS)]
FitSamples = Annotated[int, draws("Fit a probe under this many draws of the posterior.", max=MOST_DRAWS)]
Temper = Annotated[bool, draws("Fit a temperature for the probe, at μ and under draws.", "--temper")]
Network = Annotated[str, draws("Read the student or the teacher of a pretraining run.")]
Strategy = Annotated[str, draws("Make draws by loop, vmap or auto; a probe knows only loop.")]
Seed = Annotated[int, draws("Draw all that is random from this seed.", min=0, max=2**63 - 1)]

Force = Annotated[bool, output("Overwrite the output.", "--force")]

Precision = Annotated[str, machine("Compute in 32-true, or in bf16-mixed, which is faster on a GPU.")]
Device = Annotated[str, machine("Compute on this device: auto, cpu, cuda, cuda:1 ….")]
BatchSize = Annotated[int, machine("Take this many images at a time, which changes no result.")]
Trust = Annotated[bool, machine("Import the code that the run's recipe names.", "--trust")]
