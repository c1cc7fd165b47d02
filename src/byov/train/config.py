"""Recipes: frozen dataclasses, nested, from TOML files and `key=value` overrides, and back.

A field's declared type decides how its value is read: bool, int, float, str, tuples, `Literal`, unions (so `X | None`)
and other dataclasses. TOML has no null: in a file or an override `none` is None where the type allows it. A file may
say `base = "other.toml"`, relative to itself, and then holds only what differs.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def load_config(cls: type[T], path: str | PathLike[str] | None = None, overrides: Sequence[str] = ()) -> T:
    """The recipe at `path` (the defaults, where there is none) with `overrides` such as "train.epochs=5" on top."""
    if "base" in _names(cls):
        raise TypeError(f"{cls.__name__} has a field named base, which in a recipe names the recipe below it.")
    values = {} if path is None else _read(Path(path), ())
    if isinstance(overrides, str):
        raise TypeError("The overrides are a list of key=value.")
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ValueError(f"An override is key=value, not {override!r}.")
        values = _merge(values, _nest(key.split("."), _parse(_type_of(cls, key), text.strip(), key)))
    return _build(cls, values, "", text=True)


def value_of(path: str | PathLike[str] | None, overrides: Sequence[str], key: str) -> Any:
    """What a recipe and its overrides say of one key, such as "data.name", before anybody knows the recipe's kind."""
    for override in reversed(list(overrides)):
        name, _, text = override.partition("=")
        if name.strip() == key:
            return text.strip().strip("\"'")
    found: Any = {} if path is None else _read(Path(path), ())
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
    """The config that `to_dict` was given."""
    return _build(cls, values, "", text=False)


def to_dict(config: Any) -> dict[str, Any]:
    """Plain nested dicts and lists, for a checkpoint or JSON; tuples become lists, which `from_dict` undoes."""
    if not is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"A config is a dataclass, not {type(config).__name__}.")
    return {field.name: _plain(getattr(config, field.name)) for field in _fields(type(config))}


def to_toml(config: Any) -> str:
    """The whole config as the text of a recipe that `load_config` reads back, equal."""
    text = "\n".join(_lines(config, "")).strip() + "\n"
    again = _build(type(config), tomllib.loads(text), "", text=True)
    if repr(again) != repr(config):  # as text, since nan is not equal to itself
        raise ValueError("A text that reads 'none' cannot be told from None in a recipe.")
    return text


# Reading


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"There is no recipe at {path}.")
    resolved = path.resolve()
    if resolved in seen:
        raise ValueError(f"{path} is its own base.")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}.") from None
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise ValueError(f"{path}: base names another recipe, it cannot be {base!r}.")
    return _merge(_read(path.parent / base, (*seen, resolved)), values)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`, table by table; neither is changed."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _nest(keys: Sequence[str], value: Any) -> dict[str, Any]:
    return {keys[0]: value if len(keys) == 1 else _nest(keys[1:], value)}


# Types


@cache
def _types(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _fields(cls: type) -> list[Field[Any]]:
    if not is_dataclass(cls):
        raise TypeError(f"A config is a dataclass, not {cls.__name__}.")
    return [field for field in fields(cls) if field.init]


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _tables(kind: Any) -> list[type]:
    return [member for member in _members(kind) if isinstance(member, type) and is_dataclass(member)]


def _keys(cls: type, prefix: str = "") -> Iterator[str]:
    """Every dotted key of a config."""
    for field in _fields(cls):
        yield prefix + field.name
        for table in _tables(_types(cls)[field.name]):
            yield from _keys(table, f"{prefix}{field.name}.")


def _type_of(cls: type, key: str) -> Any:
    """The declared type at a dotted key."""
    kinds: list[Any] = [cls]
    for part in key.split("."):
        kinds = [_types(table)[part] for kind in kinds for table in _tables(kind) if part in _names(table)]
    if not kinds:
        raise _unknown(cls, key)
    return kinds[0]


def _names(cls: type) -> list[str]:
    return [field.name for field in _fields(cls)]


def _unknown(cls: type, key: str, prefix: str = "") -> ValueError:
    near = get_close_matches(key, list(_keys(cls)), n=1, cutoff=0.0)
    nearest = f"; the nearest is {prefix + near[0]!r}" if near else ""
    return ValueError(f"There is no key {prefix + key!r}{nearest}.")


# From plain values


def _build(cls: Any, values: Any, where: str, text: bool) -> Any:
    """A dataclass from a table; `text` says that it was read from TOML, where `none` stands for None."""
    names = _names(cls)
    if not isinstance(values, Mapping):
        raise ValueError(f"{where or 'A recipe'} is a table with {', '.join(names)}, not {values!r}.")
    prefix = f"{where}." if where else ""
    for key in values:
        if key not in names:
            raise _unknown(cls, str(key), prefix)
    chosen = {}
    for field in _fields(cls):
        if field.name in values:
            chosen[field.name] = _value(_types(cls)[field.name], values[field.name], prefix + field.name, text)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"The recipe lacks {prefix + field.name}, {_describe(_types(cls)[field.name])}.")
    return cls(**chosen)


def _value(kind: Any, value: Any, where: str, text: bool) -> Any:
    """`value` as `kind` has it: an int may stand for a float, a list for a tuple, a table for a dataclass."""
    origin, members = get_origin(kind), _members(kind)
    if len(members) > 1:
        # Of several, the one that takes the value as it is; a table or list that can be only one gets its sentence.
        shaped = [m for m in members if (_is_tuple(m) if isinstance(value, list | tuple) else m in _tables(kind))]
        if isinstance(value, list | tuple | Mapping) and len(shaped) == 1:
            return _value(shaped[0], value, where, text)
        tries = [(m, _attempt(_value, m, value, where, text)) for m in members]
        if text and value == "none" and any(found and m is not str for m, found in tries):
            tries = [(m, found) for m, found in tries if m is not str]
        taken = [it for _, found in tries for it in found]
        if taken:
            return next((found for found in taken if type(found) is type(value)), taken[0])
    elif is_dataclass(kind):
        return _build(kind, value, where, text)
    elif origin is Literal:
        for option in get_args(kind):
            if type(option) is type(value) and option == value:
                return option
    elif kind is NoneType:
        if value is None or (text and value == "none"):
            return None
    elif kind is float:
        if type(value) in (int, float):
            return float(value)
    elif kind in (bool, int, str):
        if type(value) is kind:
            return value
    elif _is_tuple(kind):
        kinds = _elements(kind, len(value)) if isinstance(value, list | tuple) else None
        if kinds is not None:
            return tuple(_value(k, v, f"{where}[{i}]", text) for i, (k, v) in enumerate(zip(kinds, value, strict=True)))
    else:
        raise TypeError(f"{where} is declared as {kind}, which a recipe cannot hold.")
    raise ValueError(f"{where} is {_describe(kind)}, not {value!r}.")


def _attempt(read: Callable[..., Any], *args: Any) -> list[Any]:
    try:
        return [read(*args)]
    except ValueError:
        return []


def _is_tuple(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _elements(kind: Any, count: int) -> list[Any] | None:
    """The types of a tuple's elements, or None if it does not have `count`."""
    kinds = list(get_args(kind))
    if kinds[-1:] == [...]:
        return kinds[:1] * count
    return kinds if len(kinds) == count else None


def _describe(kind: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", NoneType: "none"}
    if kind in names:
        return names[kind]
    if get_origin(kind) is Literal:
        return " or ".join(repr(option) for option in get_args(kind))
    if _is_tuple(kind):
        kinds = get_args(kind)
        return f"a list, each {_describe(kinds[0])}" if kinds[-1:] == (...,) else f"a list of {len(kinds)}"
    if len(_members(kind)) > 1:
        return " or ".join(_describe(member) for member in _members(kind))
    return f"a table with {', '.join(_names(kind))}" if _tables(kind) else str(kind)


# From the text of an override


def _parse(kind: Any, text: str, where: str) -> Any:
    members = _members(kind)
    if len(members) > 1:
        for member in sorted(members, key=_rank):
            for found in _attempt(_parse, member, text, where):
                return found
    elif get_origin(kind) is Literal:
        for option in get_args(kind):
            if text == (str(option).lower() if isinstance(option, bool) else str(option)):
                return option
    elif kind is NoneType and text.lower() == "none":
        return None
    elif kind is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    elif kind in (int, float):
        for found in _attempt(kind, text):
            return found
    elif kind is str:
        return text
    elif _is_tuple(kind) or is_dataclass(kind):
        for found in _attempt(lambda: tomllib.loads(f"it = {text}")["it"]):
            if isinstance(found, list | dict):
                _value(kind, found, where, text=True)  # refuse it here, but merge it as the table that it is
                return found
        if _is_tuple(kind):  # without TOML's quotes and brackets, as people type it
            parts = [part.strip() for part in text.strip("[]()").split(",") if part.strip()]
            kinds = _elements(kind, len(parts))
            if kinds is not None:
                return tuple(_parse(k, part, where) for k, part in zip(kinds, parts, strict=True))
    raise ValueError(f"{where} is {_describe(kind)}, not {text!r}.")


def _rank(kind: Any) -> int:
    """Which member of a union a text is tried on first: the pickiest, and str, which takes all, at the end."""
    order = [Literal, NoneType, bool, int, float]
    kind = get_origin(kind) or kind
    return order.index(kind) if kind in order else len(order) + (kind is str)


# Writing


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return to_dict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _lines(config: Any, prefix: str) -> Iterator[str]:
    tables = []
    for name, value in _written(config):
        if is_dataclass(value):
            tables.append((f"{prefix}{_key(name)}", value))
        else:
            yield f"{_key(name)} = {_toml(value)}"
    for name, value in tables:
        yield f"\n[{name}]"
        yield from _lines(value, f"{name}.")


def _written(config: Any) -> list[tuple[str, Any]]:
    """The fields that a recipe has to name: all, but for a None that is the default."""
    pairs = [(field, getattr(config, field.name)) for field in _fields(type(config))]
    return [(field.name, value) for field, value in pairs if value is not None or field.default is not None]


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple | list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if is_dataclass(value):
        return "{" + ", ".join(f"{_key(name)} = {_toml(item)}" for name, item in _written(value)) + "}"
    return repr(value)  # ints and floats are written alike in Python and TOML, inf and nan too


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
