"""Options that several commands have, declared once, and the panels that --help shows them in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DATA, DRAWS, OUTPUT, MACHINE = "Data", "Draws and probe", "Output", "Machine"

Root = Annotated[
    Path | None, typer.Option(help="The folder of the data sets.", show_default=False, rich_help_panel=DATA)
]
Split = Annotated[str, typer.Option(help="The split to read.", rich_help_panel=DATA)]
Data = Annotated[
    str | None,
    typer.Option(help="The data set's name. Default: the run's own.", show_default=False, rich_help_panel=DATA),
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
    typer.Option(help="Give the images 1 or 3 channels, likewise.", show_default=False, rich_help_panel=DATA),
]
MOST_DRAWS = 10**6
"""More would not end, nor tell more."""
Samples = Annotated[int, typer.Option(max=MOST_DRAWS, help="Posterior draws to read under.", rich_help_panel=DRAWS)]
FitSamples = Annotated[
    int,
    typer.Option(max=MOST_DRAWS, help="Posterior draws to fit a probe under.", rich_help_panel=DRAWS),
]
Temper = Annotated[
    bool,
    typer.Option("--temper", help="Fit a temperature for the probe, at μ and under draws.", rich_help_panel=DRAWS),
]
Network = Annotated[
    str, typer.Option(help="Of a pretraining run: read the student or the teacher.", rich_help_panel=DRAWS)
]
Precision = Annotated[str, typer.Option(help="32-true, or bf16-mixed: faster on a GPU.", rich_help_panel=MACHINE)]
Strategy = Annotated[
    str, typer.Option(help="How to make draws: loop, vmap or auto. A probe knows loop.", rich_help_panel=DRAWS)
]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="The seed of everything random.", rich_help_panel=DRAWS)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …", rich_help_panel=MACHINE)]
BatchSize = Annotated[int, typer.Option(help="Images at a time. It changes no result.", rich_help_panel=MACHINE)]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output.", rich_help_panel=OUTPUT)]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Import the code that the run's recipe names.", rich_help_panel=MACHINE),
]
Severities = Annotated[str, typer.Option(help="Severities of the shifts, such as 1-5 or 1,3,5.", rich_help_panel=DATA)]
