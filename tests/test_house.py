"""The house's rules that a machine can read: short files, short functions, docstrings in the imperative."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCES = sorted((Path(__file__).parents[1] / "src").rglob("*.py"))
NO_VERBS = {"A", "An", "How", "It", "Returns", "That", "The", "These", "This", "What", "When", "Where", "Whether"}


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.name}:{node.lineno} {node.name}", node


def test_no_file_has_more_than_400_lines() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in SOURCES}
    assert len(lengths) > 100
    assert {name: length for name, length in lengths.items() if length > 400} == {}


def test_no_function_has_more_than_60_lines() -> None:
    lengths = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in functions()}
    assert {name: length for name, length in lengths.items() if length > 60} == {}


def test_docstrings_begin_with_a_verb() -> None:
    documented = {name: text for name, node in functions() if (text := ast.get_docstring(node))}
    assert {name: text for name, text in documented.items() if text.split()[0] in NO_VERBS} == {}


def test_no_command_has_more_than_100_lines() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in SOURCES if path.parent.name == "commands"}
    assert len(lengths) > 10
    assert {name: length for name, length in lengths.items() if length > 100} == {}
