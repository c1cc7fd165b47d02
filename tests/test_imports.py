"""Imports go one way through the house: see `CONTRIBUTING.md`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "byov"
FLOORS = [
    {"posterior", "metrics", "files", "device", "version"},
    {"prediction", "pruning", "data", "hf", "lightning"},
    {"models", "posthoc"},
    {"train", "overhead"},
    {"ssl", "sharing"},
    {"runs"},
    {"evaluation"},
    {"report"},
    {"reproduce"},
    {"demo"},
    {"commands"},
    {"cli"},
]
"""From the ground up: a part may import itself and parts of the floors below."""
ALONE = {
    "posterior": set(),
    "metrics": set(),
    "prediction": {"posterior"},
    "posthoc": {"posterior", "prediction"},
    "pruning": {"posterior", "files"},
}
"""Parts that can be used without the rest: all that they may import."""
SHORTHAND = {"posterior/module.py": {"sharing"}}
"""Methods that are shorthand for a function above, which they import when they are called."""
FLOOR = {part: floor for floor, parts in enumerate(FLOORS) for part in parts}


def imported(file: Path) -> Iterator[str]:
    """The parts of byov that a file imports, also inside functions: a late import would hide a cycle."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide where a name comes from"
            names = [f"byov.{alias.name}" for alias in node.names] if node.module == "byov" else [node.module or ""]
        for name in names:
            if name.startswith("byov."):
                yield name.split(".")[1]


def part_of(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = [file for file in sorted(SOURCE.rglob("*.py")) if part_of(file) not in ("__init__", "__main__")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_imports_only_from_below(file: Path) -> None:
    part = part_of(file)
    found = set(imported(file)) & set(FLOOR) - SHORTHAND.get(str(file.relative_to(SOURCE)), set())
    assert not {name for name in found if name != part and FLOOR[name] >= FLOOR[part]}
    if part in ALONE:
        assert found <= ALONE[part] | {part}


def test_every_part_has_its_floor() -> None:
    assert {part_of(file) for file in FILES} == set(FLOOR)
