"""What the site needs beyond MkDocs: blocks that are run, equations without a script, pages from beside docs/.

Equations become MathML while the site is built; browsers draw it themselves. A document of the repository that a page
links to (`../results/README.md`) becomes a page, and what that one links to comes along, so that links are true both
in the repository and on the site. Under each block of a page in docs/ stands what it printed and drew while the site
was built; BYOV_DOCS=plain builds without running them.
"""

from __future__ import annotations

import os
import re
import sys
from html import unescape
from pathlib import Path
from posixpath import dirname, normpath
from tempfile import TemporaryDirectory
from typing import Any

from griffe import Extension, Object
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
from execute import BLOCK, ROOT, Shown, run

SHOWN: dict[str, list[Shown]] = {}
PAGES = ["results/README.md", "benchmarks/README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
LINK = re.compile(r"\]\(([\w./-]+)(?=[#)])")


def on_files(files: Files, config: Any) -> Files:
    """Run the pages' blocks; add the pages beside docs/, and every file there that a page links to."""
    queue = [*PAGES]
    for page in files.documentation_pages():
        queue += _beside(f"docs/{page.src_uri}", page.content_string)
        for file, content in _run(page.src_uri, page.content_string):
            files.append(File.generated(config, file, content=content))
    while queue:
        name = queue.pop()
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
            queue += _beside(name, (ROOT / name).read_text()) if name.endswith(".md") else []
    return files


def _run(name: str, text: str) -> list[tuple[str, bytes]]:
    """Run a page's blocks, keep what they showed, and return the files of the figures among it."""
    if os.environ.get("BYOV_DOCS") == "plain" or not re.search(r"^```(python|console)$", text, re.MULTILINE):
        return []
    with TemporaryDirectory() as folder:
        SHOWN[name] = run(text, Path(folder))
    return [
        (_figure(name, i, k, kind), content)
        for i, each in enumerate(SHOWN[name])
        for k, (kind, content) in enumerate(each.figures)
    ]


def _figure(name: str, block: int, place: int, kind: str) -> str:
    return f"{name.removesuffix('.md')}_{block}_{place}.{kind}"


def _shown(name: str, markdown: str) -> str:
    """Put under each block what it showed; a command's prompt would be copied with it, and goes."""
    shown = enumerate(SHOWN.get(name, []))

    def block(found: re.Match[str]) -> str:
        text = found[0].replace("```console", "```bash").replace("\n$ ", "\n")
        i, each = next(shown, (0, Shown()))
        if each.text.strip():
            text += f"\n\n``` {{ .text .no-copy .shown }}\n{each.text.rstrip()}\n```"
        names = [_figure(Path(name).name, i, k, kind) for k, (kind, _) in enumerate(each.figures)]
        return text + "".join(f"\n\n![What this draws]({each})" for each in names)

    return BLOCK.sub(block, markdown)


def _beside(name: str, text: str) -> list[str]:
    """The files outside docs/ that a document links to, as paths from the root of the repository."""
    paths = [normpath(f"{dirname(name)}/{link}".lstrip("/")) for link in LINK.findall(text)]
    return [path for path in paths if not path.startswith(("docs/", "..")) and (ROOT / path).is_file()]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are on the site, where what is in docs/ and what lies beside it share one root."""
    if page.file.generated_by:
        return re.sub(r"\]\(((?:\.\./)*)docs/", r"](\1", markdown)
    markdown = _shown(page.file.src_uri, markdown)
    up = "../" * page.file.src_uri.count("/")
    return re.sub(rf"\]\({re.escape(up)}\.\./", f"]({up}", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Each equation that arithmatex has marked, as MathML; examples without prompts, which would be copied, too."""
    html = re.sub(r'<span class="gp">(?:&gt;&gt;&gt;|\.\.\.) ?</span>', "", html)
    html = re.sub(r'<span class="go">(.+?)</span>', r'<span class="c1"># \1</span>', html)
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
