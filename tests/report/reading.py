"""A page as a browser without scripts sees it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

SECTIONS = [
    "answer", "numbers", "calibration", "ood", "risk", "entropy", "representation", "gallery", "pruning", "layers",
    "convergence", "training", "config", "protocol",
]  # fmt: skip
VOID = {"meta", "link", "img", "br", "input", "hr"}


class Page(HTMLParser):
    """Elements that are open and closed in order, the text of each section, and what would be loaded."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.inside: list[str] = []
        self.sections: dict[str, str] = {}
        self.loaded: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data: dict[str, Any] = {}
        self.script: dict[str, str | None] | None = None
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        self.loaded += [value or "" for key, value in attrs if key in ("src", "href", "srcset", "data", "action")]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.inside.append(found["id"] or "")
            self.sections[self.inside[-1]] = ""
        self.script = found if tag == "script" else None

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "section":
            self.inside.pop()
        self.script = None

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.sections[self.inside[-1]] += data
        if self.script is not None and self.script.get("id") == "data":
            self.data = json.loads(data)

    def text(self, section: str) -> str:
        return re.sub(r"\s+", " ", self.sections[section])

    def with_attribute(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.tags if name in attributes]
