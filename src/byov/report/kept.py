"""Parts of a report that were measured before: one JSON file each, good for as long as the protocol is the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byov.files import write_json
from byov.report.sources import finite

KIND = "byov report"


@dataclass(frozen=True)
class Kept:
    """The parts of one run, in a folder."""

    folder: Path
    protocol: dict[str, Any]
    """What every part depends on: the weights, the images and how they are read."""

    def path(self, part: str) -> Path:
        return self.folder / f"{part}.json"

    def get(self, part: str) -> Any:
        """What was kept under the same protocol; None otherwise."""
        try:
            content = json.loads(self.path(part).read_text(encoding="utf-8"))
            same = content["kind"] == KIND and content["protocol"] == json.loads(json.dumps(self.protocol))
            return content["result"] if same else None
        except (OSError, ValueError, KeyError, TypeError):  # a file that is not ours is not read, and is written anew
            return None

    def put(self, part: str, result: Any) -> Any:
        result = finite(result)
        write_json(self.path(part), {"kind": KIND, "part": part, "protocol": self.protocol, "result": result})
        return json.loads(json.dumps(result))

    def or_make(self, part: str, make: Callable[[], Any], renew: bool = False) -> Any:
        """What was kept, or what `make` gives, which is kept then."""
        found = None if renew else self.get(part)
        return self.put(part, make()) if found is None else found
