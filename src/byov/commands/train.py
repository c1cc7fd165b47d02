"""`byov train`: a classifier with a posterior over its weights, from labelled images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from byov.commands.options import plain


def command(
    recipe: Annotated[
        Path | None, typer.Argument(help="Follow this TOML recipe, or byov's of that name; without one it is digits.")
    ] = None,
    run: Annotated[Path, plain("Keep checkpoint, log and TensorBoard here.")] = Path("runs/train"),
    set_: Annotated[list[str] | None, plain("Change the recipe, as in posterior.family=emp.", "--set")] = None,
    resume: Annotated[bool, plain("Resume the run in --run, or start it.")] = False,
) -> None:
    """Train a network with labels under any family: none, gaussian, dropout, dropconnect, ensemble, emp, ecmp.

    On images a classifier; on a table of numbers, data.name = table:FILE or uci:NAME, a regression.

    It ends with the scores of at most 2,000 test images, or held-out ones, at μ and under draws.

    Example: byov train recipes/digits_train.toml --run runs/bbb --set posterior.family=gaussian
    """
    from byov.commands.console import first_process, show
    from byov.train import supervised, tabular
    from byov.train.config import load_config, value_of

    changes = set_ or []
    if str(value_of(recipe, changes, "data.name")).startswith(tabular.PREFIXES):
        tabular.start(load_config(tabular.Tabular, recipe, changes), run, resume)
    elif supervised.start(load_config(supervised.Supervised, recipe, changes), run, resume) and first_process():
        from byov.evaluation.end_of_run import train_lines

        show(*train_lines(run))
