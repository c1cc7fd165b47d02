"""`byov overhead`: what a posterior would cost, before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from byov.overhead import Row


def command(
    model: Annotated[
        str,
        typer.Argument(
            help="A network's name: byov's own (pyramidnet110_a84, cifar_resnet18, table3_mlp, vit-ti/4 …), else"
            " timm's, else torchvision's; timm:NAME and torchvision:NAME pick one.",
        ),
    ],
    k: Annotated[int, typer.Option("--k", help="Components of EMP, ECMP and the explicit ensemble.")] = 5,
    on: Annotated[
        str | None,
        typer.Option(
            help="Where every family goes: all, norm+output, norm or output"
            " (without it: EMP and ECMP on norm+output and on norm, the others on all).",
            show_default=False,
        ),
    ] = None,
    classes: Annotated[
        int | None,
        typer.Option(min=1, help="Outputs of the network (without it: as many as it usually has).", show_default=False),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the table to this file.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --json overwrite a file.")] = False,
) -> None:
    """Parameters, overhead and effective ensemble size of every family on a network, without building any.

    Of resnet18, pyramidnet and table3_mlp it gives the numbers in Tables 1 and 3 of the patching paper. An effective
    ensemble size is how many different networks a family can draw.
    """
    from byov.overhead import overhead

    if json is not None and json.is_dir():
        raise ValueError(f"{json} is a folder: --json takes the name of a file.")
    if json is not None and json.exists() and not force:
        raise FileExistsError(f"{json} exists already: choose another name, or add --force.")
    rows = overhead(build(model, classes), k, on)
    _show(model, rows)
    if json is not None:
        _write(json, model, k, rows)


def build(name: str, classes: int | None) -> nn.Module:
    """The network called `name` without memory for its weights, where its construction allows that."""
    import torch

    try:
        with torch.device("meta"):
            return _create(name, classes)
    except NotImplementedError:  # torchvision's RegNets compute with a tensor while they are built
        return _create(name, classes)


def _create(name: str, classes: int | None) -> nn.Module:
    from byov import models

    own: dict[str, Callable[..., nn.Module]] = {
        "pyramidnet": models.pyramidnet,
        "cifar_resnet18": models.cifar_resnet18,
        "table3_mlp": models.table3_mlp,
    }
    if name in own:
        return own[name](classes=classes) if classes else own[name]()
    return models.create(name, classes or _usual_classes(name))


def _usual_classes(name: str) -> int:
    """The data set a name stands for: CIFAR for byov's small networks, else what timm trained it on, else ImageNet."""
    import timm

    bare = name.rpartition(":")[2]
    if name.startswith("pyramidnet"):
        return 100
    if name.startswith(("cifar_", "vit-")):
        return 10
    if not name.startswith("torchvision:") and timm.is_model(bare):
        trained = timm.get_pretrained_cfg(bare)
        return trained.num_classes if trained is not None and trained.num_classes else 1000
    return 1000


def _show(model: str, rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=model, caption="effective size: how many different networks can be drawn")
    for heading in ("family", "on"):
        table.add_column(heading, no_wrap=True)
    for heading in ("parameters", "overhead", "effective size"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.family, row.on, f"{row.parameters:,}", _percent(row.percent), row.ensemble_size)
    Console().print(table)


def _percent(value: float) -> str:
    """Three digits, as the paper prints them: 0.328 %, 1.10 %, 17.9 %, 100 %."""
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} %" if value else "0 %"


def _write(path: Path, model: str, k: int, rows: list[Row]) -> None:
    from dataclasses import asdict
    from json import dumps

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dumps({"model": model, "k": k, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
