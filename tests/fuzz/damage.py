"""Ways to spoil bytes, trees and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

DEEP = 100_000
JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 10**400, 0.5, float("nan"), float("inf"), "", "x", "../..", "python:os:getcwd", [], [[]],
    {}, {"a": {"b": []}}, [None] * 3, "\ud800", {"$tensor": "nowhere"}, {"$dict": 3}, {"$tuple": None},
)  # fmt: skip


def spoiled_bytes(content: bytes, rng: Random) -> bytes:
    """Cut, empty, flip, repeat or overwrite."""
    at = rng.randrange(len(content))
    return rng.choice(
        (
            lambda: b"",
            lambda: content[:at],
            lambda: content[at:],
            lambda: rng.randbytes(200),
            lambda: content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :],
            lambda: content[:at] + rng.randbytes(40) + content[at + 40 :],
            lambda: b"\xff\xfe" + content,
            lambda: b"\0" * len(content),
        )
    )()


def places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every node of a JSON tree but its root, by the keys that lead there."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield (*at, key)
        yield from places(value, (*at, key))


def spoiled_tree(tree: Any, rng: Random) -> Any:
    """Return the tree with one node replaced by junk, or removed. Changes the tree that it is given."""
    depths: dict[int, list[tuple[Any, ...]]] = {}
    for place in places(tree):
        depths.setdefault(len(place), []).append(place)
    *way, last = rng.choice(depths[rng.choice(list(depths))])  # the few nodes near the root as often as the many below
    node = tree
    for key in way:
        node = node[key]
    if rng.random() < 0.2:
        del node[last]
    else:
        node[last] = rng.choice(JUNK)
    return tree


def spoiled_json(path: Path, rng: Random) -> bytes:
    """Return a JSON file's content, spoiled as bytes or as a tree."""
    content = path.read_bytes()
    how = rng.random()
    if how < 0.15:
        return spoiled_bytes(content, rng)
    if how < 0.2:
        return b"[" * DEEP + b"]" * DEEP
    if how < 0.25:
        return b'{"kind": ' + b'{"a": ' * DEEP + b"1" + b"}" * DEEP + b"}"
    if how < 0.3:
        return json.dumps(rng.choice(JUNK)).encode()
    text = json.dumps(spoiled_tree(json.loads(content), rng))
    return text.replace("Infinity", "1e400").encode()


def spoiled_checkpoint(path: Path, rng: Random) -> bytes:
    """Return a checkpoint's content, spoiled as bytes or in the tree or the table of tensors that its header holds."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    if rng.random() < 0.3:
        size = len(content) if rng.random() < 0.5 else length + 8  # somewhere, or in the header
        return spoiled_bytes(content[:size], rng) + content[size:]
    header = json.loads(content[8 : 8 + length])
    if rng.random() < 0.8:
        tree = json.loads(header["__metadata__"]["byov"])
        if rng.random() < 0.05:
            text = '{"a":' * DEEP + "1" + "}" * DEEP
        else:
            part = tree["recipe"] if rng.random() < 0.8 else tree
            spoiled_tree(part, rng)
            text = json.dumps(tree)
        header["__metadata__"]["byov"] = text
        header["__metadata__"].pop("crc32", None)  # as somebody would who means it, or an older byov
    else:
        spoiled_tree(header, rng)
    new = json.dumps(header).encode()
    return len(new).to_bytes(8, "little") + new + content[8 + length :]
