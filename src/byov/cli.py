"""`byov …`: the verbs, and how bad input is told: one clear sentence and exit status 2, never a traceback."""

from __future__ import annotations

import sys
from importlib import import_module

import typer
from rich.console import Console

from byov.train.diverged import Diverged

VERBS = ["demo", "pretrain", "train", "probe", "evaluate", "overhead"]

app = typer.Typer(
    name="byov",
    help="Bring your own variance: a posterior over the weights of any PyTorch network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def byov() -> None:
    """Keeps `byov VERB` a group, also while there is only one verb."""


for verb in VERBS:
    app.command(verb)(import_module(f"byov.commands.{verb}").command)


def main() -> None:
    """The entry point: what the user can mend ends in a sentence, what is our fault in a traceback."""
    try:
        app()
    except (ValueError, TypeError, OSError) as error:
        Console(stderr=True).print(f"[bold red]byov:[/] {error}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except Diverged as error:
        Console(stderr=True).print(f"[bold red]byov:[/] {error}", highlight=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        Console(stderr=True).print("byov: interrupted")
        sys.exit(130)
