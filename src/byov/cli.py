"""`byov …`: the commands. Bad input ends with one clear sentence and exit status 2, never a traceback."""

from __future__ import annotations

import sys
from importlib import import_module
from itertools import pairwise
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from byov import __version__
from byov.commands.console import first_process
from byov.train import Diverged, Stopped

VERBS = [
    "demo",
    "pretrain",
    "train",
    "probe",
    "evaluate",
    "predict",
    "prune",
    "explore",
    "overhead",
    "reproduce",
    "report",
]

app = typer.Typer(
    name="byov",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"byov {__version__}")
        raise typer.Exit


@app.callback()
def byov(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Bring your own variance: a posterior over the weights of any PyTorch network."""


for verb in VERBS:  # these modules import little: each imports its dependencies when it is called
    app.command(verb)(import_module(f"byov.commands.{verb}").command)


def main() -> None:
    """Run the command: errors that the user can fix end in a sentence, bugs in a traceback."""
    try:
        _check_words(sys.argv)
        app()
    except (ValueError, TypeError, OSError) as error:
        _print_error(error)
        sys.exit(2)
    except ModuleNotFoundError as error:  # if only some dependencies are installed
        if (error.name or "byov").startswith("byov"):
            raise
        _print_error(ValueError(f"This needs {error.name}: pip install torch-byov installs all dependencies."))
        sys.exit(2)
    except Diverged as error:
        _print_error(error)
        sys.exit(1)
    except Stopped as stop:
        if first_process():
            Console(stderr=True).print(str(stop), markup=False, highlight=False, soft_wrap=True)
        sys.exit(0)
    except RuntimeError as error:  # torch has no other type for it
        if not _out_of_memory(error):
            raise
        _print_error(error, "Out of memory: use a smaller batch (--set train.batch=…, or --batch-size).")
        sys.exit(1)
    except KeyboardInterrupt:
        Console(stderr=True).print("byov: interrupted")
        sys.exit(130)


def _check_words(words: list[str]) -> None:
    """Raise on an empty argument: it usually comes from an unset variable, and would mean the current folder."""
    for before, word in pairwise(words):
        if not word.strip():
            raise ValueError(
                f"There is an empty argument after {before}: leave it out, or set the variable that it comes from."
            )


def _out_of_memory(error: RuntimeError) -> bool:
    """Return whether a device, or the machine, ran out of memory."""
    return "out of memory" in str(error) or "can't allocate memory" in str(error)


def escaped(text: str) -> str:
    """Escape line breaks and control characters, which a path may contain."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _print_error(error: Exception, instead: str | None = None) -> None:
    """Print the sentence verbatim to stderr: text that looks like rich markup may be part of a path."""
    if not first_process():
        return
    sentence = str(error).strip() if instead is None else instead
    if (
        isinstance(error, OSError) and error.filename is not None
    ):  # from the system, such as "[Errno 20] Not a directory: 'x'"
        sentence = f"{error.filename}: {error.strerror}."
    Console(stderr=True).print(Text.assemble(("byov: ", "bold red"), escaped(sentence)), soft_wrap=True)
