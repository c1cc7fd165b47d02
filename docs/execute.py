"""Run the blocks of a page in order, as a reader would paste them, and keep what they print and draw.

In one namespace and one empty folder beside the recipes: `python` is executed (a block that begins with `# name.py` is
also that file), `console` is given to the command, and `toml` that begins with `# name.toml` is that file. The site
shows what is kept under each block (`hooks.py`), and a test runs every page (`tests/test_docs.py`).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(python|console|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LARGE = 150_000
"""Above so many bytes a figure is a photograph rather than a drawing, and is kept as WebP."""


@dataclass
class Shown:
    """What a block printed, and the figures that it drew, as (kind, bytes)."""

    text: str = ""
    figures: list[tuple[str, bytes]] = field(default_factory=list)


def run(page: str, folder: Path, names: dict[str, Any] | None = None) -> list[Shown]:
    """Run the blocks of a page, whose Python fills `names`; raise what the first that fails raises."""
    import torch

    names = {} if names is None else names
    names["__name__"] = "page"
    (folder / "recipes").symlink_to(ROOT / "recipes")
    torch.manual_seed(0)
    with _inside(folder):
        return [_run(language, block, folder, names) for language, block in BLOCK.findall(page)]


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in a folder whose modules can be imported, and leave everything as it was."""
    before, path, modules = Path.cwd(), [*sys.path], {*sys.modules}
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name in {*sys.modules} - modules:  # those of the page's own: another page may have another of that name
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]


def _run(language: str, block: str, folder: Path, names: dict[str, Any]) -> Shown:
    file = re.match(r"# (\w+\.(?:py|toml))\n", block)
    if file:
        (folder / file[1]).write_text(block)
    printed = io.StringIO()
    if language == "python":
        with contextlib.redirect_stdout(printed):
            exec(compile(block, "page", "exec", dont_inherit=True), names)
    for line in commands(block) if language == "console" else []:
        printed.write(_command(line))
    return Shown(printed.getvalue(), [_packed(figure) for figure in _drawn()])


def commands(block: str) -> list[str]:
    """Return what follows `$ byov` on each line of a block, lines that end in a backslash joined."""
    return re.findall(r"^\$ byov (.*)$", re.sub(r"\\\n\s*", "", block), re.MULTILINE)


def _command(line: str) -> str:
    from typer.testing import CliRunner

    from byov.cli import app

    result = CliRunner().invoke(app, shlex.split(line, comments=True))
    assert result.exit_code == 0, f"byov {line}\n{result.output}\n{result.exception!r}"
    return result.output


def _drawn() -> Iterator[bytes]:
    """Yield the figures that pyplot holds, as PNG, and close them."""
    if "matplotlib.pyplot" not in sys.modules:
        return
    import matplotlib.pyplot as plt

    for number in plt.get_fignums():
        content = io.BytesIO()
        plt.figure(number).savefig(content, dpi=130, bbox_inches="tight")
        plt.close(number)
        yield content.getvalue()


def _packed(png: bytes) -> tuple[str, bytes]:
    if len(png) < LARGE:
        return "png", png
    from PIL import Image

    content = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(content, "webp", quality=82)
    return "webp", content.getvalue()
