"""`byov reproduce`: the papers' tables and figures again, at the scale at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from byov.commands import options


def command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Tables and figures, such as byov/figure4 or 'byov/*'; see --list.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Name every table and figure of both papers.")] = False,
    scale: Annotated[
        str | None, typer.Option(help="quick or full; none: full on a GPU, else quick.", show_default=False)
    ] = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    data_root: options.Root = None,
    run: Annotated[
        list[Path] | None,
        typer.Option(help="A run to look at, in the place of one that would be trained; may be repeated."),
    ] = None,
    trust: options.Trust = False,
    minutes: Annotated[
        float | None,
        typer.Option(help="Begin no new work after this long; the same command goes on.", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of results: NAME's are in OUT/NAME.")] = Path("reproduced"),
    force: Annotated[
        bool, typer.Option("--force", help="Run again what is finished; parts of the same protocol are used again.")
    ] = False,
) -> None:
    """Run tables and figures of the papers again, and show them as paper | ours | verdict.

    Each writes result.json (data, protocol, comparisons), figure.png and figure.svg. One that was interrupted goes on
    where it stopped; one that is finished is shown again, and not overwritten without --force.

    Example: byov reproduce 'byov/*' --scale quick
    """
    from byov.commands.console import show
    from byov.device import choose_device
    from byov.report import tables
    from byov.reproduce.experiment import Context, OutOfTime, check, discover, finished
    from byov.reproduce.experiment import run as execute
    from byov.reproduce.papers import catalogue, choose
    from byov.runs import read_header

    known = discover()
    if list_:
        show(tables.catalogue(catalogue(known, names or ["*"])), width=110)
        return
    chosen, skipped = choose(names or [], known)
    place = choose_device(device)
    size = ("full" if place.type == "cuda" else "quick") if scale is None else scale
    if size not in ("quick", "full"):
        raise ValueError(f"A scale is quick or full, not {size!r}.")
    for path in run or []:
        read_header(path)
    given, place_of_data = tuple(run or []), None if data_root is None else str(data_root)
    common = Context(out, size, seed, str(place), place_of_data, given, trust=trust)  # type: ignore[arg-type]
    if minutes is not None:
        if not minutes > 0:
            raise ValueError(f"--minutes is above 0, not {minutes}.")
        common = replace(common, deadline=monotonic() + 60 * minutes)
    contexts = {name: replace(common, out=out / name) for name in chosen}
    for name, context in contexts.items():
        if not force:
            check(known[name], context)
    show(*(f"{name} is left out: {reason}." for name, reason in skipped.items()))
    failed: list[str] = []
    left: list[str] = []
    for name, context in contexts.items():
        before = None if force else finished(context.out)
        try:
            content = before or execute(known[name], context)
        except OutOfTime:
            left.append(name)
            continue
        except (ValueError, TypeError, OSError) as error:
            if len(contexts) == 1:
                raise
            failed.append(name)
            show(f"{name} failed: {error}")
            continue
        show(*tables.reproduced(content, context.out, again=before is not None), width=110)
    if left:
        show(f"Not finished in {minutes:g} minutes: {', '.join(left)}. The same command goes on where it stopped.")
    if failed:
        raise ValueError(f"{len(failed)} of {len(contexts)} could not be run: {', '.join(failed)}.")
