"""`byov probe`: what a pretrained encoder knows about labels it never saw."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(help="A pretraining run's folder.")],
    data: Annotated[
        str | None, typer.Option(help="Labelled images to fit and read on; none: the run's own.", show_default=False)
    ] = None,
    split: Annotated[str, typer.Option(help="What to read on: test, or holdout if the recipe has one.")] = "test",
    samples: Annotated[int, typer.Option(help="Posterior draws to read under; 0 leaves them out.")] = 30,
    fit_samples: Annotated[int, typer.Option(help="Posterior draws to fit under.")] = 8,
    temper: Annotated[
        bool, typer.Option("--temper", help="Fit a temperature for the linear probe, at μ and under draws.")
    ] = False,
    k: Annotated[int, typer.Option(help="Neighbours; at most a tenth of the training images are asked.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the draws, and of the linear probe's held-out part.")] = 0,
    root: Annotated[str | None, typer.Option(help="Where the data lie, if not where the recipe says.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Write the numbers and their protocol here, as JSON.")] = None,
    force: Annotated[bool, typer.Option(help="Overwrite that file.")] = False,
) -> None:
    """Fit kNN and linear probes on the run's training images, and read them at the posterior mean and under draws."""
    from rich.console import Console

    from byov.files import check_out, write_json
    from byov.ssl.runs import probe_run
    from byov.ssl.table import probe_table
    from byov.ssl.temperature import EXAMPLES

    if out is not None:
        check_out(out, force)
    result = probe_run(run, split, samples, fit_samples, k, seed, root, device, data, EXAMPLES if temper else 0)
    Console().print(probe_table({str(run): result.result}))
    if out is not None:
        write_json(out, {"scores": result.result.numbers(), "protocol": result.protocol})
