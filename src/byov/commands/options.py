"""Options shared by several commands, and the panels of --help that they appear in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer


def panel(name: str | None) -> Callable[..., Any]:
    """Return a function that declares options in a panel: `data("Use this split.", "--split")`."""
    return lambda help, *names, **settings: typer.Option(*names, help=help, rich_help_panel=name, **settings)


plain, data, draws, output, machine = map(panel, (None, "Data", "Draws and probe", "Output", "Machine"))

Root = Annotated[Path | None, data("Look for datasets in this folder.")]
Split = Annotated[str, data("Use this split.")]
Data = Annotated[str | None, data("Use this dataset instead of the run's own.")]
TrainLimit = Annotated[int | None, data("Fit a probe to this many training images.")]
ImageSize = Annotated[int | None, data("Resize the images for a python: network.")]
Channels = Annotated[int | None, data("Convert the images to 1 or 3 channels for a python: network.")]
Severities = Annotated[str, data("Apply shifts at these severities, such as 1-5 or 1,3,5.")]

MOST_DRAWS = 10**6
"""More would not finish, and would not change a result."""
Samples = Annotated[int, draws("Predict under this many posterior draws.", max=MOST_DRAWS)]
FitSamples = Annotated[int, draws("Fit a probe under this many posterior draws.", max=MOST_DRAWS)]
Temper = Annotated[bool, draws("Fit a temperature for the probe, at μ and under draws.", "--temper")]
Network = Annotated[str, draws("Use the student or the teacher of a pretraining run.")]
Strategy = Annotated[str, draws("Compute draws by loop, vmap or auto; a probe supports only loop.")]
Seed = Annotated[int, draws("Seed all random numbers with this.", min=0, max=2**63 - 1)]

Force = Annotated[bool, output("Overwrite the output.", "--force")]

Precision = Annotated[str, machine("Compute in 32-true, or in bf16-mixed, which is faster on a GPU.")]
Device = Annotated[str, machine("Compute on this device: auto, cpu, cuda, cuda:1 ….")]
BatchSize = Annotated[int, machine("Process this many images at a time; results do not depend on it.")]
Trust = Annotated[bool, machine("Allow importing the code that the run's recipe names.", "--trust")]
