"""Which tables and figures a pattern such as 'byov/*' means."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from byov.reproduce.papers import CAPTIONS, REASONS

NO_EXPERIMENT = "there is no experiment of it yet"


def choose(patterns: Sequence[str], known: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return the names that patterns mean, each once and in the papers' order; and what a glob leaves out, with why."""
    if not patterns:
        raise ValueError("Say which table or figure, such as byov/figure4; byov reproduce --list names them all.")
    chosen: set[str] = set()
    skipped: dict[str, str] = {}
    for pattern in patterns:
        found = [name for name in _names(known) if fnmatchcase(name, pattern)]
        if not found:
            raise ValueError(f"There is no table or figure {pattern!r}; byov reproduce --list names them all.")
        for name in found:
            if name in known:
                chosen.add(name)
                continue
            skipped[name] = REASONS.get(name, NO_EXPERIMENT)
            if name == pattern:
                raise ValueError(f"{name} cannot be reproduced: {skipped[name]}.")
    if not chosen:
        raise ValueError(f"Nothing that {' '.join(patterns)} means can be reproduced; see byov reproduce --list.")
    return [name for name in _names(known) if name in chosen], skipped


def catalogue(known: dict[str, Any], patterns: Sequence[str]) -> list[tuple[str, str, str | None]]:
    """Return (name, title, why it is not reproduced or None) of what patterns mean."""
    return [
        (name, known[name].title, None) if name in known else (name, CAPTIONS[name], REASONS.get(name, NO_EXPERIMENT))
        for name in _names(known)
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    ]


def _names(known: dict[str, Any]) -> list[str]:
    return [*CAPTIONS, *(name for name in known if name not in CAPTIONS)]
