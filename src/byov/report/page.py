"""The page: one HTML file with its style, its script and its numbers inside, and nothing to load."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from byov.report.collect import Request, collect
from byov.report.content import METRICS, content
from byov.report.formatting import cell, count, missing, setting, signed
from byov.report.groups import group
from byov.report.sources import gather

LIMIT = 5_000_000
"""How large a page may be, in bytes: it is sent by mail and opened on a phone."""
SCRIPTS = ("chart.js", "figures.js", "page.js")


def report(
    paths: Sequence[Path],
    out: Path,
    request: Request | None = None,
    compute: bool = True,
    renew: bool = False,
    cache: Path | None = None,
    title: str | None = None,
    names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Read and measure what is named, write the page, and return its numbers.

    `title` and `names` are what the page calls itself and the runs, in the place of their paths; for the other
    arguments see `collect`.
    """
    sources = gather(paths)
    for run, name in zip(sources.runs, names or (), strict=False):
        run.name = name
    collect(sources.runs, request or Request(), compute, renew, cache)
    tree = content(sources, group(sources.runs))
    write(out, render(tree, title))
    return tree


def render(tree: dict[str, Any], title: str | None = None) -> str:
    """The HTML of a tree of numbers; names in it are text, whatever they hold."""
    environment = Environment(
        loader=PackageLoader("byov.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"cell": cell, "signed": signed, "setting": setting, "count": count}
    environment.globals |= {"missing": missing, "METRICS": METRICS}
    html = environment.get_template("page.html").render(
        **tree,
        title=title or default_title(tree),
        style=Markup(_asset("style.css")),
        scripts=[Markup(_asset(name)) for name in SCRIPTS],
        data=Markup(as_script(tree)),
    )
    return "\n".join(line for line in html.splitlines() if line.strip()) + "\n"


def default_title(tree: dict[str, Any]) -> str:
    """The models' names, as a tab of the browser shows them."""
    labels = [group["label"] for group in tree["groups"]]
    return " · ".join(labels[:4]) if labels else "Reproduced results"


def as_script(tree: dict[str, Any]) -> str:
    """JSON that may stand inside <script>: nothing in it can end the element."""
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for mark, code in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(mark, code)
    return text


def write(out: Path, html: str) -> None:
    """The file, whole or not at all."""
    size = len(html.encode())
    if size > LIMIT:
        raise ValueError(f"The page would take {size:,} bytes, over {LIMIT:,}: name fewer runs.")
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.partial")
    partial.write_text(html, encoding="utf-8")
    os.replace(partial, out)


def _asset(name: str) -> str:
    return (files("byov.report") / "templates" / name).read_text(encoding="utf-8")
