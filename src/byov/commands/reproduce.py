"""`byov reproduce`: the papers' tables and figures again, at the scale at hand."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from byov.commands import options
from byov.commands.options import plain

Names = Annotated[
    list[str] | None, typer.Argument(help="Run these tables and figures, such as byov/figure4 or 'byov/*'; see --list.")
]
Scale = Annotated[str | None, plain("Run at quick or full scale; without it full on a GPU, else quick.")]
Runs = Annotated[
    list[Path] | None, plain("Look at this run in the place of one that would be trained; may be repeated.")
]
Minutes = Annotated[float | None, plain("Begin no new work after this long; the same command continues.")]
Force = Annotated[bool, plain("Run again what is finished; parts of the same protocol are used again.", "--force")]


def command(
    names: Names = None,
    list_: Annotated[bool, plain("Name every table and figure of both papers.", "--list")] = False,
    scale: Scale = None,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    data_root: options.Root = None,
    run: Runs = None,
    trust: options.Trust = False,
    minutes: Minutes = None,
    out: Annotated[Path, plain("Write the results of NAME to OUT/NAME.")] = Path("reproduced"),
    force: Force = False,
) -> None:
    """Run tables and figures of the papers again, and show them as paper | ours | verdict.

    Each writes result.json (data, protocol, comparisons), figure.png and figure.svg. One that was interrupted continues
    where it stopped; one that is finished is shown again, and not overwritten without --force.

    Example: byov reproduce 'byov/*' --scale quick
    """
    from byov.commands.console import announce, show
    from byov.device import choose_device
    from byov.report import tables
    from byov.reproduce.experiment import OutOfTime, check, contexts, discover, finished
    from byov.reproduce.experiment import run as execute
    from byov.reproduce.papers import catalogue, choose

    known = discover()
    if list_:
        show(tables.catalogue(catalogue(known, names or ["*"])), width=110)
        return
    chosen, skipped = choose(names or [], known)
    wanted = contexts(chosen, out, scale, seed, str(choose_device(device)), data_root, run or (), minutes, trust)
    for name, context in wanted.items():
        if not force:
            check(known[name], context)
    show(*(f"{name} is left out: {reason}." for name, reason in skipped.items()))
    failed: list[str] = []
    left: list[str] = []
    started, done = monotonic(), 0
    for i, (name, context) in enumerate(wanted.items()):
        announce(name, i, len(wanted), done, monotonic() - started)
        before = None if force else finished(context.out)
        try:
            content = before or execute(known[name], context)
        except OutOfTime:
            left.append(name)
        except (ValueError, TypeError, OSError) as error:
            if len(wanted) == 1:
                raise
            failed.append(name)
            show(f"{name} failed: {error}")
        else:
            done += before is None
            show(*tables.reproduced(content, context.out, again=before is not None), width=110)
    if left:
        show(f"Not finished in {minutes:g} minutes: {', '.join(left)}. The same command continues where it stopped.")
    if failed:
        raise ValueError(f"{len(failed)} of {len(wanted)} could not be run: {', '.join(failed)}.")
