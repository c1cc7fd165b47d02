"""Options that several commands have, declared once, and the panels that --help shows them in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DATA, DRAWS, OUTPUT, MACHINE = "Data", "Draws and probe", "Output", "Machine"

Root = Annotated[
    Path | None, typer.Option(help="Look for the data sets in this folder.", show_default=False, rich_help_panel=DATA)
]
Split = Annotated[str, typer.Option(help="Read this split.", rich_help_panel=DATA)]
Data = Annotated[
    str | None,
    typer.Option(help="Read this data set, not the run's own.", show_default=False, rich_help_panel=DATA),
]
TrainLimit = Annotated[
    int | None,
    typer.Option(help="Fit a probe on this many training images.", show_default=False, rich_help_panel=DATA),
]
ImageSize = Annotated[
    int | None,
    typer.Option(help="Resize the images for a python: network.", show_default=False, rich_help_panel=DATA),
]
Channels = Annotated[
    int | None,
    typer.Option(
        help="Give the images 1 or 3 channels, for a python: network.", show_default=False, rich_help_panel=DATA
    ),
]
Limit = Annotated[
    int | None, typer.Option(help="Evaluate on this many images.", show_default=False, rich_help_panel=DATA)
]
Normalise = Annotated[
    bool,
    typer.Option("--normalise", help="Standardise by the training split's moments.", rich_help_panel=DATA),
]
Bins = Annotated[
    int,
    typer.Option(help="Divide confidence into this many bins for ECE and adaptive ECE.", rich_help_panel=OUTPUT),
]
MOST_DRAWS = 10**6
"""More would not end, nor tell more."""
Samples = Annotated[
    int, typer.Option(max=MOST_DRAWS, help="Read under this many draws of the posterior.", rich_help_panel=DRAWS)
]
FitSamples = Annotated[
    int, typer.Option(max=MOST_DRAWS, help="Fit a probe under this many draws of the posterior.", rich_help_panel=DRAWS)
]
Temper = Annotated[
    bool,
    typer.Option("--temper", help="Fit a temperature for the probe, at μ and under draws.", rich_help_panel=DRAWS),
]
Network = Annotated[
    str, typer.Option(help="Read the student or the teacher of a pretraining run.", rich_help_panel=DRAWS)
]
Precision = Annotated[
    str, typer.Option(help="Compute in 32-true, or in bf16-mixed, which is faster on a GPU.", rich_help_panel=MACHINE)
]
Strategy = Annotated[
    str, typer.Option(help="Make draws by loop, vmap or auto; a probe knows only loop.", rich_help_panel=DRAWS)
]
Seed = Annotated[
    int, typer.Option(min=0, max=2**63 - 1, help="Draw all that is random from this seed.", rich_help_panel=DRAWS)
]
Device = Annotated[
    str, typer.Option(help="Compute on this device: auto, cpu, cuda, cuda:1 ….", rich_help_panel=MACHINE)
]
BatchSize = Annotated[
    int, typer.Option(help="Take this many images at a time, which changes no result.", rich_help_panel=MACHINE)
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output.", rich_help_panel=OUTPUT)]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import the code that the run's recipe names.", rich_help_panel=MACHINE),
]
Severities = Annotated[
    str, typer.Option(help="Apply the shifts at these severities, such as 1-5 or 1,3,5.", rich_help_panel=DATA)
]
