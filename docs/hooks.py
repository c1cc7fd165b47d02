"""What the site needs beyond MkDocs: equations without a script, pages from beside docs/, examples of docstrings.

Equations become MathML while the site is built; browsers draw it themselves. A document of the repository that a page
links to (`../results/README.md`) becomes a page, and what that one links to comes along, so that links are true both
in the repository and on the site.
"""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from posixpath import dirname, normpath
from typing import Any

from griffe import Extension, Object
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PAGES = ["results/README.md", "benchmarks/README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
LINK = re.compile(r"\]\(([\w./-]+)(?=[#)])")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages beside docs/ and every file that they, or the pages in docs/, link to there."""
    queue = [*PAGES]
    for page in files.documentation_pages():
        queue += _beside(f"docs/{page.src_uri}", page.content_string)
    while queue:
        name = queue.pop()
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
            queue += _beside(name, (ROOT / name).read_text()) if name.endswith(".md") else []
    return files


def _beside(name: str, text: str) -> list[str]:
    """The files outside docs/ that a document links to, as paths from the root of the repository."""
    paths = [normpath(f"{dirname(name)}/{link}".lstrip("/")) for link in LINK.findall(text)]
    return [path for path in paths if not path.startswith(("docs/", "..")) and (ROOT / path).is_file()]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are on the site, where what is in docs/ and what lies beside it share one root."""
    if page.file.generated_by:
        return re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", markdown)
    up = "../" * page.file.src_uri.count("/")
    return re.sub(rf"\]\({re.escape(up)}\.\./", f"]({up}", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Each equation that arithmatex has marked, as MathML."""
    html = re.sub(r'<span class="arithmatex">\\\((.*?)\\\)</span>', lambda m: _mathml(m[1], "inline"), html, flags=re.S)
    return re.sub(
        r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', lambda m: _mathml(m[1], "block"), html, flags=re.S
    )


def _mathml(latex: str, display: str) -> str:
    return convert(unescape(latex).strip(), display=display)


class Examples(Extension):
    """One `Example:` in a docstring is shown as code, as griffe shows `Examples:`."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.M)
