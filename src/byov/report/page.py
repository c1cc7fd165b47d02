"""The page: one self-contained HTML file with its style, scripts and numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from byov.files import replacing
from byov.report.collect import Request, collect
from byov.report.content import METRICS, content
from byov.report.formatting import MISSING, abbr, cell, count, day, hint, setting, signed, span
from byov.report.groups import group
from byov.report.sources import gather
from byov.report.verdict import bars
from byov.ssl.linear_evaluation import Advance

LIMIT = 3_000_000
"""The largest size of a page in bytes: pages are sent by mail and opened on phones."""
SCRIPTS = ("chart.js", "export.js", "figures.js", "page.js")


def report(
    paths: Sequence[Path],
    out: Path,
    request: Request | None = None,
    compute: bool = True,
    renew: bool = False,
    cache: Path | None = None,
    title: str | None = None,
    names: Sequence[str] = (),
    advance: Advance | None = None,
) -> dict[str, Any]:
    """Read and measure the given runs and files, write the page, and return its numbers.

    `title` is the title of the page, and `names` replace the paths of the runs. For the other arguments see `collect`.
    """
    sources = gather(paths)
    for run, name in zip(sources.runs, names, strict=False):
        run.name = name
    collect(sources.runs, request or Request(), compute, renew, cache, advance)
    tree = content(sources, group(sources.runs))
    write(out, render(tree, title))
    return tree


def render(tree: dict[str, Any], title: str | None = None) -> str:
    """Return the HTML of a tree of numbers; all names are escaped."""
    environment = Environment(
        loader=PackageLoader("byov.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {each.__name__: each for each in (abbr, cell, count, day, hint, setting, signed, span)}
    environment.globals |= {"MISSING": MISSING, "METRICS": METRICS, "bars": bars}
    labels = [group["label"] for group in tree["groups"]]
    usual = " · ".join(labels[:4]) if labels else "Reproduced results"
    html = environment.get_template("page.html").render(
        **tree,
        title=title or usual,
        style=Markup(_asset("style.css")),
        scripts=[Markup(_asset(name)) for name in SCRIPTS],
        data=Markup(as_script(tree)),
    )
    return "\n".join(line for line in html.splitlines() if line.strip()) + "\n"


def as_script(tree: dict[str, Any]) -> str:
    """Return JSON that is safe inside <script>: it cannot close the element."""
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate({ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"})


def write(out: Path, html: str) -> None:
    """Write the page, completely or not at all; raise if it is too large."""
    content = html.encode(errors="backslashreplace")  # file names need not be UTF-8
    if len(content) > LIMIT:
        raise ValueError(f"The page would have {len(content):,} bytes, over {LIMIT:,}: name fewer runs.")
    with replacing(out) as fresh:
        fresh.write_bytes(content)


def _asset(name: str) -> str:
    return (files("byov.report") / "templates" / name).read_text(encoding="utf-8")
