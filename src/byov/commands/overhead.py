"""`byov overhead`: the cost of a posterior, before training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from byov.commands.options import plain


def command(
    model: Annotated[
        str,
        typer.Argument(
            help="Count for the network of this name: from byov (pyramidnet110_a84, cifar_resnet18, vit-ti/4 …),"
            " otherwise timm, otherwise torchvision; timm:NAME and torchvision:NAME select the library.",
        ),
    ],
    k: Annotated[int, plain("Give EMP, ECMP and the explicit ensemble this many components.", "--k")] = 5,
    on: Annotated[
        str | None,
        plain(
            "Put every family on all, norm+output, norm or output, or on the parameters a glob such as '*attn*' matches"
            " (default: EMP and ECMP on norm+output and on norm, the others on all)."
        ),
    ] = None,
    classes: Annotated[
        int | None, plain("Give the network this many outputs (default: its usual number).", min=1)
    ] = None,
    json: Annotated[Path | None, plain("Also write the table to this file.")] = None,
    force: Annotated[bool, plain("Allow --json to overwrite a file.", "--force")] = False,
) -> None:
    """Count parameters, overhead and effective ensemble size of every family on a network, without building it.

    For resnet18, pyramidnet and table3_mlp it gives the numbers in Tables 1 and 3 of the patching paper. The effective
    ensemble size is the number of different networks that a family can draw.
    """
    from dataclasses import asdict

    from byov.commands.console import show
    from byov.files import check_out, write_json
    from byov.overhead import build, overhead
    from byov.report import tables

    if json is not None:
        check_out(json, force, "--json")
    rows = overhead(build(model, classes), k, on)
    show(tables.overhead(model, rows))
    if json is not None:
        write_json(json, {"model": model, "k": k, "rows": [asdict(row) for row in rows]})
