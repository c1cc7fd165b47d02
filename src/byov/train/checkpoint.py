"""A checkpoint: one safetensors file whose metadata holds, as JSON, the tree that the tensors hang on. No pickle.

The tree is dicts (keys str or int), lists, tuples, None, bool, int, float, str and tensors. JSON has it as it is, but

    a tensor                              {"$tensor": its name in the file}
    a tuple                               {"$tuple": [...]}
    a dict with other keys than plain str {"$dict": [[key, value], ...]}

so that any safetensors reader finds the tensors under their path in the tree (`model/net.fc.weight`).
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_KEY = "byov"
_HEADER_LIMIT = 100_000_000  # safetensors' own
_STALE = 3600.0
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


def save(path: str | os.PathLike[str], state: Any) -> None:
    """Write `state` to `path` so that whoever looks finds the old file or the new one, whole.

    A tensor that occurs several times is stored once, and shared again by `load`; other views of one storage are stored
    each by itself. Parameters come back as tensors, dicts of any kind as dicts, all on the device that `load` is given.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: a checkpoint is a file.")
    tensors = _Tensors()
    try:
        skeleton = json.dumps(_encode(state, (), tensors), separators=(",", ":"))
    except RecursionError:
        raise ValueError("The state holds itself, or is nested too deeply, to be saved.") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    with _replacing(path) as file:
        _write(file, skeleton, tensors.named)


def load(path: str | os.PathLike[str], map_location: str | torch.device = "cpu") -> Any:
    """The tree that `save` was given, its tensors on `map_location`, in memory of their own."""
    with _open(path) as (file, skeleton, entries, start):
        # Read, not mapped as safetensors' own loader does: a mapped file is read a page at a time, when first touched,
        # and lies at addresses that no allocator would choose, on which the order of a kernel's sums may depend.
        loaded = {}
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
            tensor = torch.empty(entry["shape"], dtype=_DTYPES[entry["dtype"]])
            if tensor.numel():
                file.seek(start + entry["data_offsets"][0])
                _fill(file, tensor.view(-1).view(torch.uint8).numpy().data)
            loaded[name] = tensor.to(map_location)
    return _decode(skeleton, loaded.__getitem__)


def peek(path: str | os.PathLike[str]) -> Any:
    """The same tree without reading its tensors: in their place are `meta` tensors of their shape and dtype."""
    with _open(path) as (_, skeleton, entries, _):
        return _decode(skeleton, lambda name: _meta(**entries[name]))


def _meta(dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
    return torch.empty(shape, dtype=_DTYPES[dtype], device="meta")


class _Tensors:
    """The tensors met so far, by the name each gets in the file."""

    def __init__(self) -> None:
        self.named: dict[str, Tensor] = {}
        self._known: dict[tuple[Any, ...], str] = {}

    def add(self, tensor: Tensor, where: tuple[str, ...]) -> str:
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            kind = "meta" if tensor.device.type == "meta" else str(tensor.layout).removeprefix("torch.")
            raise ValueError(f"{_path(where)} is a {kind} tensor: a checkpoint holds plain dense ones.")
        if tensor.dtype not in _DTYPES.values():
            raise ValueError(f"{_path(where)} is of {tensor.dtype}, which safetensors does not know.")
        tensor = tensor.detach().resolve_conj().resolve_neg()
        storage = tensor.untyped_storage().data_ptr()
        same = (storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if tensor.numel() and same in self._known:
            return self._known[same]
        # Names only tell people where a tensor was; what matters is that no two are the same.
        name = "/".join(where).encode("utf-8", "replace").decode() or "tensor"
        while name in self.named or name == "__metadata__":
            name += "'"
        self._known[same] = name
        self.named[name] = tensor
        return name


def _write(file: FileIO, skeleton: str, tensors: dict[str, Tensor]) -> None:
    """The safetensors format: the header's length, the header, the tensors' bytes.

    By hand, since safetensors' own writer goes through a file and a rename of its own, whose name, permissions and
    moment of reaching the disk are not ours to say.
    """
    order = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)  # so that each is aligned to its items
    header: dict[str, Any] = {"__metadata__": {_KEY: skeleton}}
    names, end = {dtype: name for name, dtype in _DTYPES.items()}, 0
    for name, tensor in order:
        offsets = [end, end := end + tensor.nbytes]
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    if len(raw) > _HEADER_LIMIT:
        raise ValueError("The state holds too many plain values for a checkpoint: put long lists into tensors.")
    _send(file, memoryview(len(raw).to_bytes(8, "little") + raw))
    for _, tensor in order:
        if tensor.numel():
            _send(file, tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def _encode(value: Any, where: tuple[str, ...], tensors: _Tensors) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        return {"$tensor": tensors.add(value, where)}
    if type(value) in (list, tuple):
        items = [_encode(item, (*where, str(i)), tensors) for i, item in enumerate(value)]
        return items if type(value) is list else {"$tuple": items}
    if isinstance(value, dict):
        for key in value:
            if type(key) not in (str, int):
                raise TypeError(f"{_path(where)} has the key {key!r}: a checkpoint's keys are str or int.")
        items = [[key, _encode(item, (*where, str(key)), tensors)] for key, item in value.items()]
        if all(type(key) is str and not key.startswith("$") for key in value):
            return dict(items)
        return {"$dict": items}
    raise TypeError(
        f"{_path(where)} is a {type(value).__name__}: a checkpoint holds dicts, lists, tuples, None, bool, int, float,"
        " str and tensors."
    )


def _decode(node: Any, tensor: Callable[[str], Tensor]) -> Any:
    if isinstance(node, list):
        return [_decode(item, tensor) for item in node]
    if not isinstance(node, dict):
        return node
    if "$tensor" in node:
        return tensor(node["$tensor"])
    if "$tuple" in node:
        return tuple(_decode(item, tensor) for item in node["$tuple"])
    if "$dict" in node:
        return {key: _decode(item, tensor) for key, item in node["$dict"]}
    return {key: _decode(item, tensor) for key, item in node.items()}


@contextmanager
def _open(path: str | os.PathLike[str]) -> Iterator[tuple[FileIO, Any, dict[str, Any], int]]:
    """The open file of a whole checkpoint, its skeleton, its tensors' entries and where their bytes start."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint at {path}.")
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        begin = file.read(9)
        length = int.from_bytes(begin[:8], "little")
        start = 8 + length
        if len(begin) == 9 and (begin[8:] != b"{" or length > _HEADER_LIMIT):
            raise ValueError(f"{path} is not a byov checkpoint.")
        if size < start or len(begin) < 9:
            raise ValueError(f"{path} is truncated: it ends inside its header, after {size} bytes.")
        try:
            entries = json.loads(begin[8:] + file.read(length - 1))
            skeleton = json.loads(entries.pop("__metadata__")[_KEY])
            end = start + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise ValueError(f"{path} is not a byov checkpoint.") from None
        if size < end:
            raise ValueError(f"{path} is truncated: it has {size} bytes of {end}.")
        yield file, skeleton, entries, start


@contextmanager
def _replacing(path: Path) -> Iterator[FileIO]:
    """A file to write that takes the place of `path` once it is on the disk; on an error it is removed."""
    for left in path.parent.glob(f".{path.name}.*.tmp"):  # by runs that were killed while they saved
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE:
                left.unlink()
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex}.tmp"
    try:
        with temporary.open("xb", buffering=0) as file:
            yield file
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name != "nt":  # Windows cannot open folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name too
        finally:
            os.close(folder)


def _send(file: FileIO, memory: memoryview) -> None:
    while memory:  # one call takes at most 2 GiB
        memory = memory[file.write(memory) :]


def _fill(file: FileIO, memory: memoryview) -> None:
    while memory:
        count = file.readinto(memory)
        if not count:
            raise ValueError(f"{file.name} was truncated while it was read.")
        memory = memory[count:]


def _path(where: tuple[str, ...]) -> str:
    return "/".join(where) or "The state"
