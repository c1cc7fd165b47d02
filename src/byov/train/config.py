"""Recipes: nested frozen dataclasses, read from TOML files and `key=value` overrides, and converted to plain dicts.

A field's declared type decides how its value is read: bool, int, float, str, tuples, `Literal`, unions (so `X | None`)
and other dataclasses. It also limits numbers: `Annotated[float, Range(0)]`; without a `Range` a float is finite and an
int has 64 bits. TOML has no null: in a file or an override, `none` means None if the type allows it. A file may set
`base = "other.toml"`, relative to itself, and then contains only the differences.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from os import PathLike
from pathlib import Path
from reprlib import Repr
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from byov.files import naming_file

T = TypeVar("T")

PACKAGE = Path(__file__).parents[1]
FOLDERS = (PACKAGE / "recipes", PACKAGE.parents[1] / "recipes")
"""The package's folder, if it was installed from a wheel, and the repository's."""


@dataclass(frozen=True)
class Range:
    """The allowed range of a number: from `low` to `high`; with `above`, `low` itself is excluded."""

    low: float
    high: float = 1e38
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        if self.above:
            return f"above {self.low:,}" + (f" and at most {self.high:,}" if self.high < 1e38 else "")
        return f"from {self.low:,} to {self.high:,}" if self.high < 1e38 else f"of at least {self.low:,}"


Count = Annotated[int, Range(1, 10**9)]
Width = Annotated[int, Range(1, 10**6)]
"""Width of a layer."""
Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
Share = Annotated[float, Range(0, 10**6, above=True)]
"""A fraction of another number; it may exceed 1."""
Rate = Annotated[float, Range(0, 10**6, above=True)]
"""A learning rate; above this limit an optimizer's step does not fit float32."""
Multiple = Annotated[float, Range(0, 10**6)]
"""A multiple of a learning rate or of the weights."""
LogVariance = Annotated[float, Range(-100_000, 80)]
Sigma = Annotated[float, Range(0, 10**18)]
"""Beyond these limits a variance does not fit float32."""

_DEFAULT_RANGES: dict[Any, Range] = {int: Range(-(2**63), 2**63 - 1), float: Range(-1e38, 1e38)}
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 200


class _Text(str):
    """The text of an override, parsed according to its field's type; a str from a file is never parsed as a number."""


def load_config(cls: type[T], path: str | PathLike[str] | None = None, overrides: Sequence[str] = ()) -> T:
    """Read the recipe at `path`, or byov's own with that name, and apply overrides such as "train.epochs=5".

    Without a path, start from the defaults.
    """
    if "base" in _names(cls):
        raise TypeError(f"{cls.__name__} has a field named base, which in a recipe names the recipe below it.")
    if isinstance(overrides, str):
        raise TypeError("The overrides are a list of key=value.")
    values = _read(path)
    for override in overrides:
        key, equals, text = (part.strip() for part in override.partition("="))
        if not equals or not key:
            raise ValueError(f"An override is key=value, not {override!r}.")
        value: Any = _toml(text) if text.startswith("{") else None
        value = _Text(text) if value is None else value
        for name in reversed(key.split(".")):
            value = {name: value}
        values = _merge(values, value)
    return _build(cls, values, "", toml=True)


def value_of(path: str | PathLike[str] | None, overrides: Sequence[str], key: str) -> Any:
    """Return the value of one key, such as "data.name", in a recipe of any kind and its overrides."""
    for override in reversed(list(overrides)):
        name, _, text = override.partition("=")
        if name.strip() == key:
            return text.strip().strip("\"'")
    found: Any = _read(path)
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def from_dict(cls: type[T], values: Mapping[str, Any]) -> T:
    """Rebuild the config from the result of `to_dict`."""
    return _build(cls, values, "", toml=False)


def to_dict(config: Any) -> dict[str, Any]:
    """Return plain nested dicts and lists, for a checkpoint or JSON; tuples become lists, which `from_dict` undoes."""
    if not is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"A config is a dataclass, not {type(config).__name__}.")
    return {field.name: _plain(getattr(config, field.name)) for field in _fields(type(config))}


def check(config: Any, name: str) -> None:
    """Raise if a config created in Python has values that its types do not allow; for use in `__post_init__`.

    `name` is the name of its table in a recipe, for the error message.
    """
    cls: Any = type(config)
    for field in _fields(cls):
        value = getattr(config, field.name)
        if not is_dataclass(value):
            _value(_types(cls)[field.name], value, f"{name}.{field.name}", toml=False)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return to_dict(value)
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts with dotted keys: {"train": {"lr": 0.1}} becomes {"train.lr": 0.1}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


# Files


def located(path: str | PathLike[str]) -> Path:
    """Return the file at this path, or else byov's own recipe: digits_train, or recipes/digits_train.toml.

    An existing file takes precedence.
    """
    path = Path(path)
    if path.is_file():
        return path
    if path.parent in (Path(), Path("recipes")) and path.suffix in ("", ".toml"):
        for folder in FOLDERS:
            if (found := folder / f"{path.stem if path.suffix else path.name}.toml").is_file():
                return found
    near = get_close_matches(path.stem, names(), n=1)
    hint = f" The nearest of byov's own is {near[0]}." if near else ""
    raise FileNotFoundError(f"There is no recipe at {path}.{hint}")


def names() -> list[str]:
    """Return the names of byov's own recipes."""
    return sorted({file.stem for folder in FOLDERS for file in folder.glob("*.toml")})


def _read(path: str | PathLike[str] | None, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a recipe's file and merge it over its bases; `seen` are the files that led here."""
    if path is None:
        return {}
    path = located(path)
    resolved = path.resolve()
    if resolved in seen:
        raise ValueError(f"{path} is its own base.")
    if path.stat().st_size > 20_000:  # tomllib is quadratic in the length of a dotted key
        raise ValueError(f"{path} is too large for a recipe: it has {path.stat().st_size} bytes.")
    try:
        with naming_file(path):
            values = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # from TOML, UTF-8, or Python's limit on the digits of a number
        raise ValueError(f"{path} is not TOML: {error}.") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply for a recipe.") from None
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise ValueError(f"{path}: base names another recipe, it cannot be {base!r}.")
    return _merge(_read(path.parent / base, (*seen, resolved)), values)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Merge `above` over `below`, table by table; neither is modified."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key, "none")
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = _merge(old, value, f"{where}{key}.")
        elif isinstance(value, Mapping) and str(old).lower() != "none":  # merging would hide the error below
            raise ValueError(f"{where}{key} is a table, not {_SHORT.repr(old)}.")
        merged[key] = value
    return merged


# Types


@cache
def _types(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _fields(cls: type) -> list[Field[Any]]:
    if not is_dataclass(cls):
        raise TypeError(f"A config is a dataclass, not {cls.__name__}.")
    return [field for field in fields(cls) if field.init]


def _names(cls: Any) -> list[str]:
    return [field.name for field in _fields(cls)]


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _is_tuple(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _keys(cls: Any, prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of a config."""
    for field in _fields(cls):
        yield prefix + field.name
        for table in _members(_types(cls)[field.name]):
            if is_dataclass(table):
                yield from _keys(table, f"{prefix}{field.name}.")


def _describe(kind: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", NoneType: "none"}
    if kind in names:
        return names[kind]
    if get_origin(kind) is Annotated:
        base, range_ = get_args(kind)
        return f"{names[base]} {range_}"
    if get_origin(kind) is Literal:
        return " or ".join(repr(option) for option in get_args(kind))
    if _is_tuple(kind):
        kinds = get_args(kind)
        return f"a list, each {_describe(kinds[0])}" if kinds[-1:] == (...,) else f"a list of {len(kinds)}"
    if len(_members(kind)) > 1:
        return " or ".join(_describe(member) for member in _members(kind))
    return f"a table with {', '.join(_names(kind))}" if is_dataclass(kind) else str(kind)


# Values


def _build(cls: Any, values: Any, where: str, toml: bool) -> Any:
    """Build a dataclass from a table; with `toml`, it was read from TOML, where `none` means None."""
    names = _names(cls)
    if not isinstance(values, Mapping):
        raise ValueError(f"{where or 'A recipe'} is a table with {', '.join(names)}, not {_SHORT.repr(values)}.")
    prefix = f"{where}." if where else ""
    for key in values:
        if key not in names:
            near = get_close_matches(str(key), list(_keys(cls)), n=1, cutoff=0.0)
            nearest = f"; the nearest is {prefix + near[0]!r}" if near else ""
            raise ValueError(f"There is no key {prefix + str(key)!r}{nearest}.")
    chosen = {}
    for field in _fields(cls):
        kind = _types(cls)[field.name]
        if field.name in values:
            chosen[field.name] = _value(kind, values[field.name], prefix + field.name, toml)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"The recipe lacks {prefix + field.name}, {_describe(kind)}.")
    try:
        return cls(**chosen)
    except ValueError as error:  # names the field by its class, which may be in several tables
        raise ValueError(str(error).replace(f"{cls.__name__}.", prefix)) from None


def _value(kind: Any, value: Any, where: str, toml: bool) -> Any:
    """Convert `value` to `kind`: accepts an int for a float, a list for a tuple and a table for a dataclass."""
    if is_dataclass(kind):
        return _build(kind, value, where, toml)
    if len(_members(kind)) > 1:
        found = _of_union(_members(kind), value, where, toml)
    elif _is_tuple(kind):
        found = _tuple(kind, value, where, toml)
    elif kind in (bool, int, float, str, NoneType) or get_origin(kind) in (Literal, Annotated):
        found = _scalar(kind, value, toml)
    else:
        raise TypeError(f"{where} is declared as {kind}, which a recipe cannot hold.")
    if not found:
        raise ValueError(f"{where} is {_describe(kind)}, not {_SHORT.repr(value)}.")
    return found[0]


def _scalar(kind: Any, value: Any, toml: bool) -> list[Any]:
    """Return the value in a list, or an empty list if it is not of this kind."""
    if get_origin(kind) is Literal:
        if isinstance(value, _Text):
            return [o for o in get_args(kind) if value == (str(o).lower() if isinstance(o, bool) else str(o))][:1]
        return [option for option in get_args(kind) if type(option) is type(value) and option == value]
    if kind is NoneType:
        return [None] if value is None or (toml and isinstance(value, str) and value.lower() == "none") else []
    if kind is bool and isinstance(value, _Text):
        return [value.lower() == "true"] if value.lower() in ("true", "false") else []
    kind, allowed = get_args(kind) if get_origin(kind) is Annotated else (kind, _DEFAULT_RANGES.get(kind))
    if not isinstance(value, _Text) and type(value) is not kind and not (kind is float and type(value) is int):
        return []
    try:
        found = kind(value)
    except (ValueError, OverflowError):
        return []
    return [found] if allowed is None or found in allowed else []


def _tuple(kind: Any, value: Any, where: str, toml: bool) -> list[Any]:
    if isinstance(value, _Text):  # a TOML list, or one typed without quotes and brackets
        read = _toml(value)
        parts = [part.strip() for part in value.strip("[]()").split(",")]
        value = read if isinstance(read, list) else [_Text(part) for part in parts if part]
    kinds = get_args(kind)
    if not isinstance(value, list | tuple):
        return []
    if kinds[-1:] == (...,):
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        return []
    return [tuple(_value(k, v, f"{where}[{i}]", toml) for i, (k, v) in enumerate(zip(kinds, value, strict=True)))]


def _of_union(members: tuple[Any, ...], value: Any, where: str, toml: bool) -> list[Any]:
    """Try the members of a union, str last because it accepts any text; prefer one that keeps the value's type."""
    # A table or a list that only one member can accept gets that member's error message.
    shaped = [m for m in members if (_is_tuple(m) if isinstance(value, list | tuple) else is_dataclass(m))]
    if isinstance(value, list | tuple | Mapping) and len(shaped) == 1:
        return [_value(shaped[0], value, where, toml)]
    found = []
    for member in sorted(members, key=lambda m: m is str):
        try:
            found.append(_value(member, value, where, toml))
        except ValueError:
            continue
    return [it for it in found if type(it) is type(value) and it != "none"][:1] or found[:1]


def _toml(text: str) -> Any:
    """Parse a text as a TOML value; return None if it is not one."""
    try:
        return tomllib.loads(f"it = {text}")["it"]
    except (ValueError, RecursionError):
        return None
