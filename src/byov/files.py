"""Result files: written atomically, never overwritten without --force, and validated when read."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def check_out(path: Path, force: bool = False, option: str = "--out") -> None:
    """Raise before any work is done if the output file could not be written or would be overwritten."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: {option} takes the name of a file.")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a device or a pipe: {option} takes the name of a file.")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists: choose another {option}, or add --force.")
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"{nearest} is a file: there can be no {path.name} below it.")


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Add the file name to system errors that lack one, such as those of a full or broken disk."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        if error.errno is None:  # raised by a library, not by the system
            raise OSError(f"{path}: {error}.") from None
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file to write, then replace `path` with it; on an error `path` stays unchanged.

    The new file has a random name, so that no planted link is followed. It is in the same folder, has the same suffix,
    and gets its permissions from the umask. System errors name `path`.
    """
    fresh = path.with_name(f".byov.{secrets.token_hex(8)}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            yield fresh
            os.replace(fresh, path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
    except OSError as error:
        if error.errno is not None and error.filename in (None, str(fresh)):  # a full disk does not say which file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def write_json(path: Path, content: Any) -> None:
    """Write `content` as JSON, atomically."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8", errors="backslashreplace")  # file names may not be UTF-8


def whole(text: str) -> int | float:
    """Parse a JSON integer; one with more than 300 digits becomes a float, which may be infinite."""
    return int(text) if len(text) <= 300 else float(text)


LEVELS = 40
"""Maximum nesting of dicts and lists; our files have fewer than ten levels."""


def read_json(path: Path) -> Any:
    """Read a JSON file from an untrusted source."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file of results at {path}.")
    try:
        with naming_file(path):
            content = json.loads(path.read_text(encoding="utf-8"), parse_int=whole)
    except ValueError:
        raise ValueError(f"{path} is not a JSON file.") from None
    except RecursionError:
        content = None
    level = [content]
    for _ in range(LEVELS):
        below = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, dict | list))
        level = [child for children in below for child in children]
    if level or content is None:
        raise ValueError(f"{path} was not written by byov: it is empty, or its JSON is nested too deeply.")
    return content


REAL = (int, float)


def mismatch(tree: Any, pattern: Any, where: str = "") -> str:
    """Return the first mismatch of a tree with a pattern, such as "protocol.bins is a list", or "" if it matches.

    A pattern is a type, a tuple of types, a list with the pattern of its items, or a dict with the patterns of some
    keys: "key?" may be absent or None, and "*" stands for all keys.
    """
    kind = type(pattern) if isinstance(pattern, dict | list) else pattern
    if not isinstance(tree, kind) or (isinstance(tree, bool) and kind is not bool):
        return f"{where or 'the whole'} is {_called(tree)}"
    parts: list[tuple[str, Any, Any]] = []
    node: Any = tree
    if isinstance(pattern, list):
        parts = [(str(i), item, below) for i, item in enumerate(node) for below in pattern]
    elif isinstance(pattern, dict):
        keys = dict.fromkeys(node, pattern["*"]) if "*" in pattern else pattern
        named = [(key.removesuffix("?"), key.endswith("?"), below) for key, below in keys.items()]
        parts = [(name, node.get(name), below) for name, may, below in named if not (may and node.get(name) is None)]
    wrong = (mismatch(item, below, f"{where}.{name}" if where else name) for name, item, below in parts)
    return next(filter(None, wrong), "")


def _called(tree: Any) -> str:
    """Describe a JSON value in words."""
    names = {dict: "an object", list: "a list", str: "text", type(None): "absent"}
    return names.get(type(tree)) or json.dumps(tree)
