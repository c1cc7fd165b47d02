"""The front of the command line: its help and its version, and how little they need."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import typer

import byov
from byov.cli import VERBS, app

VERB = {verb: typer.main.get_command(app).commands[verb] for verb in VERBS}  # type: ignore[attr-defined]


@pytest.mark.parametrize("word", ["--help", "--version", "pretrain --help"])
def test_help_and_version_import_no_torch(word: str) -> None:
    """Torch takes seconds to import, timm and Lightning more; what only prints a text needs none of them."""
    code = (
        "import sys; from byov.cli import main\n"
        f"sys.argv = ['byov', *{word.split()!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "sys.exit(sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'timm', 'lightning', 'numpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1800)
    assert (done.returncode, done.stderr.strip()) == (1, "[]")  # an empty list, as sys.exit prints what is no number
    assert (f"byov {byov.__version__}" in done.stdout) == (word == "--version")


def test_the_parts_and_names_of_the_package_are_found_when_asked_for() -> None:
    code = (
        "import sys, byov; assert 'torch' not in sys.modules; byov.posterior.bayesianize is byov.bayesianize or 1 / 0"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=1800)
    assert {"Gaussian", "predict", "posterior"} <= set(dir(byov))
    assert all(hasattr(byov, name) for name in byov.__all__)


@pytest.mark.parametrize("verb", VERBS)
def test_help_texts_are_whole_sentences(verb: str) -> None:
    """Each begins with a verb in the imperative, and ends with a full stop; the first may be a question."""
    texts = {p.name: p.help for p in VERB[verb].params if p.name != "help"}
    texts |= {"": " ".join(VERB[verb].help.split("\n\n")[0].split())}
    for name, text in texts.items():
        assert text, name
        assert re.fullmatch(r"[A-Z].*(\.|…\.|\?)", " ".join(text.split())), (name, text)
        first = text.split()[0].rstrip(",:")
        assert first not in {"The", "A", "An", "Of", "Such", "How", "What", "Where", "Which", "In"}, (name, text)
