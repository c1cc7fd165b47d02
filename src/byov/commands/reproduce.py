"""`byov reproduce`: the papers' tables and figures again, at the scale at hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


def command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Tables and figures, such as byov/figure4 or 'byov/*'; see --list.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Name every table and figure of both papers.")] = False,
    scale: Annotated[
        str | None, typer.Option(help="quick or full; none: full on a GPU, else quick.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …")] = "auto",
    data_root: Annotated[Path | None, typer.Option(help="The folder of the data sets.", show_default=False)] = None,
    run: Annotated[
        list[Path] | None,
        typer.Option(help="A run to look at, in the place of one that would be trained; may be repeated."),
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
    from rich.console import Console

    from byov.device import choose_device
    from byov.reproduce.experiment import Context, discover
    from byov.reproduce.results import check, finished
    from byov.reproduce.results import run as execute

    console = Console()
    if not console.is_terminal:
        console = Console(width=max(110, console.width))
    known = discover()
    if list_:
        _list(console, known, names)
        return
    chosen, skipped = _chosen(names or [], known)
    place = choose_device(device)
    size = scale or ("full" if place.type == "cuda" else "quick")
    if size not in ("quick", "full"):
        raise ValueError(f"A scale is quick or full, not {size!r}.")
    for path in run or []:
        if not path.exists():
            raise FileNotFoundError(f"There is no run at {path}.")
    root = None if data_root is None else str(data_root)
    contexts = {
        name: Context(out / name, size, seed, str(place), root, tuple(run or []))  # type: ignore[arg-type]
        for name in chosen
    }
    if not force:
        for name, context in contexts.items():
            check(known[name], context)
    for name, reason in skipped.items():
        console.print(f"{name} is left out: {reason}.", style="dim", highlight=False, soft_wrap=True)
    failed: list[str] = []
    for name, context in contexts.items():
        before = None if force else finished(context.out)
        try:
            content = before or execute(known[name], context)
        except (ValueError, TypeError, OSError) as error:
            if len(contexts) == 1:
                raise
            failed.append(name)
            console.print(f"{name} failed: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
            continue
        show(console, content, context.out, again=before is not None)
    if failed:
        raise ValueError(f"{len(failed)} of {len(contexts)} could not be run: {', '.join(failed)}.")


def _chosen(patterns: list[str], known: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """The names that the patterns mean, each once and in the papers' order; and those a glob leaves out, with why."""
    from fnmatch import fnmatchcase

    from byov.reproduce.papers import CAPTIONS, REASONS

    if not patterns:
        raise ValueError("Say which table or figure, such as byov/figure4; byov reproduce --list names them all.")
    names = [*CAPTIONS, *(name for name in known if name not in CAPTIONS)]
    chosen: set[str] = set()
    skipped: dict[str, str] = {}
    for pattern in patterns:
        found = [name for name in names if fnmatchcase(name, pattern)]
        if not found:
            raise ValueError(f"There is no table or figure {pattern!r}; byov reproduce --list names them all.")
        for name in found:
            if name in known:
                chosen.add(name)
                continue
            reason = REASONS.get(name, "there is no experiment of it yet")
            if name == pattern:
                raise ValueError(f"{name} cannot be reproduced: {reason}.")
            skipped[name] = reason
    if not chosen:
        raise ValueError(f"Nothing that {' '.join(patterns)} means can be reproduced; see byov reproduce --list.")
    return [name for name in names if name in chosen], skipped


def _list(console: Console, known: dict[str, Any], patterns: list[str] | None) -> None:
    from fnmatch import fnmatchcase

    from rich import box
    from rich.table import Table
    from rich.text import Text

    from byov.reproduce.papers import CAPTIONS, REASONS

    table = Table(box=box.SIMPLE_HEAD, title="The papers' tables and figures", title_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("what it shows")
    before = None
    for name in [*CAPTIONS, *(name for name in known if name not in CAPTIONS)]:
        if patterns and not any(fnmatchcase(name, pattern) for pattern in patterns):
            continue
        paper = name.partition("/")[0]
        if before not in (None, paper):
            table.add_section()
        before = paper
        if name in known:
            table.add_row(Text(name, "bold"), Text(known[name].title))
        else:
            reason = REASONS.get(name, "there is no experiment of it yet")
            table.add_row(Text(name, "dim"), Text(f"{CAPTIONS[name]} – not reproduced: {reason}", "dim"))
    console.print(table)


def show(console: Console, content: dict[str, Any], folder: Path, again: bool = False) -> None:
    """A result as paper | ours | verdict, and where it lies."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    protocol = content["protocol"]
    about = (
        f"{content['name']}: {content['title']} ({protocol['scale']}, seed {protocol['seed']}, {protocol['device']})"
    )
    if content["comparisons"]:
        table = Table(title=Text(about), box=box.SIMPLE_HEAD, title_justify="left")
        table.add_column("quantity")
        for heading in ("paper", "ours"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("verdict")
        for row in content["comparisons"]:
            error = "" if row["error"] is None else f" ± {_number(row['error'])}"
            ours = f"{_number(row['ours'])}{error}"
            table.add_row(Text(row["quantity"]), _number(row["paper"]), ours, Text(row["verdict"]))
        console.print(table)
    else:
        console.print(about, markup=False, highlight=False, soft_wrap=True)
    if content["note"]:
        console.print(content["note"], markup=False, highlight=False, soft_wrap=True)
    state = "finished before (--force runs it again)" if again else "written"
    console.print(f"{state}: {folder}", markup=False, highlight=False, soft_wrap=True)


def _number(value: float | None) -> str:
    """Whole numbers as they are, others with four significant digits."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() and abs(value) >= 1000 else f"{value:.4g}"
