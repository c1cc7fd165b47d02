"""`byov train`: train a network with a posterior over its weights on labelled images or a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from byov.commands.options import plain


def command(
    recipe: Annotated[
        Path | None, typer.Argument(help="Use this TOML recipe, or the recipe of this name in byov (default: digits).")
    ] = None,
    run: Annotated[Path, plain("Write checkpoint, log and TensorBoard files to this folder.")] = Path("runs/train"),
    set_: Annotated[
        list[str] | None, plain("Override a key of the recipe, such as posterior.family=emp; may be repeated.", "--set")
    ] = None,
    resume: Annotated[bool, plain("Resume the run in --run, or start it.")] = False,
) -> None:
    """Train a network with labels and any posterior: swag (default), none, gaussian, dropout, dropconnect,
    ensemble, emp, ecmp.

    Images give a classifier; a table of numbers (data.name = table:FILE or uci:NAME) gives a regression.

    It ends with scores on at most 2,000 test or held-out images, at μ and under draws, or on a table's test rows.

    Example: byov train recipes/digits_train.toml --run runs/bbb --set posterior.family=gaussian
    """
    from byov.commands.console import first_process, show
    from byov.train import supervised, tabular
    from byov.train.config import load_config, value_of

    changes = set_ or []
    if table := tabular.names_table(str(value_of(recipe, changes, "data.name"))):
        finished = tabular.start(load_config(tabular.Tabular, recipe, changes), run, resume)
    else:
        finished = supervised.start(load_config(supervised.Supervised, recipe, changes), run, resume)
    if finished and first_process():
        from byov.evaluation.end_of_run import table_lines, train_lines

        show(*(table_lines(run) if table else train_lines(run)))
