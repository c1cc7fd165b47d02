"""The front of the command line: its help and its version, how little they need, and how it ends."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import typer

import byov
from byov.cli import VERBS, app, main

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def words(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


def test_help_names_every_verb(call: Any) -> None:
    status, out, _ = call("--help")
    assert status == 0
    assert set(COMMANDS) == set(VERBS)
    for verb, command in COMMANDS.items():
        assert verb in out
        assert " ".join(command.help.split()[:4]) in words(out)
    assert call("-h")[1] == out
    assert "Usage:" in (bare := "".join(call()[1:]))  # no verb at all
    assert all(verb in bare for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_verb_names_all_it_takes_in_whole_sentences(call: Any, verb: str) -> None:
    """Each begins with a verb in the imperative, and ends with a full stop; the first may be a question."""
    status, out, _ = call(verb, "--help")
    assert status == 0
    texts = {verb: COMMANDS[verb].help.split("\n\n")[0]}
    for parameter in COMMANDS[verb].params:
        if parameter.name != "help":
            names = parameter.opts if parameter.param_type_name == "option" else [parameter.name]
            assert all(name in words(out) for name in names), parameter.name
            texts[parameter.name] = parameter.help
    for name, text in texts.items():
        assert text, name
        assert all(word in words(out) for word in text.split()[:3]), text
        assert re.fullmatch(r"[A-Z].*(\.|…\.|\?)", words(text)), (name, text)
        first = text.split()[0].rstrip(",:")
        assert first not in {"The", "A", "An", "Of", "Such", "How", "What", "Where", "Which", "In"}, (name, text)


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


def test_python_m_byov() -> None:
    """The status as a shell sees it; other tests call the command in their own process."""
    found = subprocess.run([sys.executable, "-m", "byov", "prob"], capture_output=True, text=True, timeout=1800)
    assert (found.returncode, found.stdout) == (2, "")
    assert "No such command 'prob'" in found.stderr


def test_what_is_our_fault_ends_in_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug is not to be mistaken for bad input."""
    monkeypatch.setattr("byov.evaluation.probing.probe_run", lambda *_, **__: {}["bug"])
    monkeypatch.setattr(sys, "argv", ["byov", "probe", "anywhere"])
    with pytest.raises(KeyError, match="bug"):
        main()
