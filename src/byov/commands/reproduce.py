"""`byov reproduce`: reproduce tables and figures of the papers, at quick or full scale."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from byov.commands import options
from byov.commands.options import plain

Names = Annotated[
    list[str] | None,
    typer.Argument(help="Reproduce these tables and figures, such as byov/figure4 or 'byov/*'; see --list."),
]
Scale = Annotated[str | None, plain("Run at quick or full scale (default: full on a GPU, otherwise quick).")]
Runs = Annotated[list[Path] | None, plain("Use this run instead of training one; may be repeated.")]
Minutes = Annotated[float | None, plain("Start no new work after this many minutes; repeat the command to continue.")]
Force = Annotated[bool, plain("Repeat finished results, reusing parts with the same protocol.", "--force")]


def command(
    names: Names = None,
    list_: Annotated[bool, plain("List every table and figure of both papers.", "--list")] = False,
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
    """Reproduce tables and figures of the papers, and show them as paper | ours | verdict.

    Each writes result.json (data, protocol, comparisons), figure.png and figure.svg. An interrupted one continues where
    it stopped; a finished one is shown again, and overwritten only with --force.

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
        show(f"Not finished in {minutes:g} minutes: {', '.join(left)}. Repeat the command to continue.")
    if failed:
        raise ValueError(f"{len(failed)} of {len(wanted)} failed: {', '.join(failed)}.")
