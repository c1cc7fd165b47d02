"""`byov prune --sweep`: the scores of a run's network over sparsities."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from byov.runs import Reading

PANEL = "Sweep"
Sweep = Annotated[
    bool,
    typer.Option(
        "--sweep", help="Show instead the scores over sparsities, by SNR, magnitude and random.", rich_help_panel=PANEL
    ),
]
Twin = Annotated[
    Path | None,
    typer.Option(help="Sweep this deterministic run too, by magnitude.", show_default=False, rich_help_panel=PANEL),
]
Sparsities = Annotated[
    str | None,
    typer.Option(
        help="Sweep these, such as 0,0.5,0.9; without it thirteen up to 0.95.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
Refit = Annotated[
    bool,
    typer.Option("--refit", help="Also read with a probe fitted to each pruned encoder.", rich_help_panel=PANEL),
]


def sweep_command(
    run: Path,
    twin: Path | None,
    out: Path,
    by: str | None,
    scope: str,
    sparsities: str | None,
    refit: bool,
    force: bool,
    reading: Reading,
) -> None:
    """Read the run, and its twin, over sparsities; write the scores and their figure."""
    from byov.commands.console import progress, show
    from byov.evaluation.sweep import check_sweep_files, parse_sparsities, sweep_runs
    from byov.files import write_json
    from byov.report import tables
    from byov.report.drawing import save
    from byov.report.figures import pruning_figure

    check_sweep_files(out, force)
    probing, wanted = "both" if refit else "fixed", parse_sparsities(sparsities)
    with progress() as advance:
        content = sweep_runs(run, twin, wanted, scope, probing, reading, report=advance, by=by and by.split(","))  # type: ignore[arg-type]
    write_json(out, content)
    save(pruning_figure(content), out.with_suffix(""))
    show(*tables.sweep(content), f"top-1, ECE, NLL and their protocol: {out}")
