"""`byov pretrain`: train an encoder with a posterior over its weights on images without labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from byov.commands.options import plain


def command(
    recipe: Annotated[
        Path | None,
        typer.Argument(help="Use this TOML recipe, or the recipe of this name in byov (default: BYOV on digits)."),
    ] = None,
    run: Annotated[Path, plain("Write checkpoint, log and TensorBoard files to this folder.")] = Path("runs/pretrain"),
    objective: Annotated[
        str | None,
        plain("Train with byol, simsiam, simclr, moco, barlow, vicreg or dino: ssl.objective of the recipe."),
    ] = None,
    set_: Annotated[
        list[str] | None, plain("Override a key of the recipe, such as train.lr=0.01; may be repeated.", "--set")
    ] = None,
    resume: Annotated[bool, plain("Resume the run in --run, or start it.")] = False,
) -> None:
    """Pretrain on images without labels, with a posterior over the weights unless posterior.family = "none".

    BYOL with a Gaussian posterior is BYOV; emp and ecmp are available too.

    If there are labels, it ends with a nearest-neighbour score on at most 2,000 images.

    Example: byov pretrain recipes/digits_byov.toml --run runs/byov --set train.epochs=20
    """
    from byov.commands.console import first_process, show
    from byov.ssl.pretrain import Pretrain, start
    from byov.train.config import load_config

    changes = [*(set_ or []), *([] if objective is None else [f"ssl.objective={objective}"])]
    if start(load_config(Pretrain, recipe, changes), run, resume) and first_process():
        from byov.evaluation.end_of_run import pretrain_lines

        show(*pretrain_lines(run))
