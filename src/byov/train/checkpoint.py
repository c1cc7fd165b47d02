"""Checkpoints: one safetensors file with the tree of the state as JSON in its metadata. No pickle.

The tree consists of dicts (keys str or int), lists, tuples, None, bool, int, float, str and tensors. Its JSON is the
obvious one, except for

    a tensor                              {"$tensor": its name in the file}
    a tuple                               {"$tuple": [...]}
    a dict with other keys than plain str {"$dict": [[key, value], ...]}

Any safetensors reader finds the tensors under their path in the tree (`model/net.fc.weight`).

The metadata entry "crc32" holds checksums of the tree and of each tensor's dtype, shape and bytes. They protect against
faulty disks and copies, not against tampering: a CRC detects every flipped byte, and is four times as fast as BLAKE2.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from byov.files import naming_file, whole

_KEY, _SUMS = "byov", "crc32"
_HEADER_LIMIT = 99_000_000  # safetensors' own limit is 100 MB, including the tensors' names


def save(path: str | os.PathLike[str], state: Any) -> None:
    """Write `state` to `path` atomically: a reader finds either the old file or the complete new one.

    A tensor that occurs several times is stored once, and is shared again after `load`; other views of the same storage
    are stored separately. `load` returns parameters as tensors and dicts of any kind as plain dicts, all on the device
    that it is given.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: a checkpoint is a file.")
    tensors = _Tensors()
    try:
        skeleton = json.dumps(_encode(state, (), tensors), separators=(",", ":"))
    except RecursionError:
        raise ValueError("The state contains itself, or is nested too deeply, so it cannot be saved.") from None
    if len(skeleton) > _HEADER_LIMIT:
        raise ValueError("The state holds too many plain values for a checkpoint: put long lists into tensors.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # In a separate folder, because safetensors writes to a temporary file with a name of its own choice.
        with TemporaryDirectory(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent) as folder:
            written = _write(Path(folder, path.name), tensors.named, skeleton)
            os.replace(written, path)
        if os.name != "nt":  # Windows cannot open folders
            _fsync(path.parent)  # the new name too
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise OSError(f"{path} could not be written: {reason}. The checkpoint before it is kept.") from error


def clear(path: Path) -> None:
    """Remove temporary files left by runs killed while saving to `path`; no other process may be writing there."""
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(OSError):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def load(path: str | os.PathLike[str], map_location: str | torch.device = "cpu") -> Any:
    """Read the tree written by `save`, with its tensors copied to `map_location`."""
    # Copied, not left memory-mapped: a mapped file is read page by page on first access, and has addresses that no
    # allocator would choose; the order of a kernel's sums may depend on them.
    return _read(path, lambda tensor: tensor.to(map_location, copy=True), check=True)


def peek(path: str | os.PathLike[str]) -> Any:
    """Read the tree without the tensors' values: they become `meta` tensors of the same shape and dtype."""
    return _read(path, lambda tensor: tensor.to("meta"), check=False)


def fill(target: nn.Module | Optimizer, state: Any, path: str | os.PathLike[str]) -> None:
    """Load `state`, from the checkpoint at `path`, into a module or optimizer; raise if it does not fit."""
    try:
        for name, own in target.state_dict().items() if isinstance(target, nn.Module) else ():
            found = state.get(name)  # torch would cast it, or report it as missing
            whole = [t for t in (own, found) if isinstance(t, Tensor) and not t.is_floating_point()]
            if whole and isinstance(found, Tensor) and found.dtype != own.dtype:
                raise ValueError(f"{name} is {found.dtype}, not {own.dtype}")
        target.load_state_dict(state)
        for parameter, held in target.state.items() if isinstance(target, Optimizer) else ():
            for name, found in held.items():  # torch does not check these
                if isinstance(found, Tensor) and found.ndim and found.shape != parameter.shape:
                    raise ValueError(f"an optimizer's {name} is {tuple(found.shape)}, not {tuple(parameter.shape)}")
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = (lines[1:] or lines or [type(error).__name__])[0].rstrip(".")
        raise ValueError(f"{path} does not fit what its recipe describes: {reason}.") from error


def _read(path: str | os.PathLike[str], take: Callable[[Tensor], Tensor], check: bool) -> Any:
    """Read the tree; `take` converts each memory-mapped tensor, whose data have not been read yet."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint at {path}.")
    try:
        with naming_file(path), safe_open(path, framework="pt") as file:
            about, tensors = file.metadata(), {}
            skeleton = about[_KEY]
            sums = json.loads(about.get(_SUMS, "{}"))  # older versions of byov wrote none
            if not isinstance(sums, dict):
                raise ValueError("checksums by name")
            if sums and sums.pop("") != zlib.crc32(skeleton.encode()):
                raise _Damaged("its header")
            for name in file.keys():  # noqa: SIM118 (it is not a dict)
                tensor = file.get_tensor(name)
                if check and sums and sums.get(name) != _checksum(tensor):
                    raise _Damaged(name)
                tensors[name] = take(tensor)
            return _decode(json.loads(skeleton, parse_int=whole), tensors)
    except _Damaged as error:
        raise ValueError(f"{path} is damaged: {error} does not match its checksum. Use another copy.") from None
    except SafetensorError as error:
        said = str(error).lower().replace(" ", "")  # a sentence, or a name in CamelCase, depending on the version
        if any(word in said for word in ("headertoosmall", "invalidheaderlength", "incomplete")):
            raise ValueError(f"{path} is truncated: it has only {path.stat().st_size} bytes.") from None
        raise ValueError(f"{path} is not a byov checkpoint.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # no metadata, or not from byov
        raise ValueError(f"{path} is not a byov checkpoint.") from None


class _Damaged(Exception):
    """The part named in the message does not match its checksum."""


def _checksum(tensor: Tensor) -> int:
    """Compute the CRC-32 of a contiguous CPU tensor's dtype, shape and bytes."""
    kind = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, zlib.crc32(kind))


class _Tensors:
    """Tensors to be saved, by their name in the file."""

    def __init__(self) -> None:
        self.named: dict[str, Tensor] = {}
        self._known: dict[tuple[Any, ...], str] = {}
        self._storages: set[int] = set()

    def add(self, tensor: Tensor, where: tuple[str, ...]) -> str:
        """Add a tensor and return its name; a tensor added before keeps its name."""
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            kind = "meta" if tensor.device.type == "meta" else str(tensor.layout).removeprefix("torch.")
            raise ValueError(f"{_path(where)} is a {kind} tensor: a checkpoint holds plain dense ones.")
        tensor = tensor.detach().resolve_conj().resolve_neg()
        storage = tensor.untyped_storage()
        same = (storage.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if tensor.numel() and same in self._known:
            return self._known[same]
        # Names only tell people where a tensor belongs; they just have to be unique.
        name = "/".join(where).encode("utf-8", "replace").decode() or "tensor"
        while name in self.named or name == "__metadata__":
            name += "'"
        self._known[same] = name
        whole = storage.nbytes() == tensor.nbytes and storage.data_ptr() not in self._storages
        self._storages.add(storage.data_ptr())
        # safetensors rejects overlapping tensors: views of a storage are copied, a tensor that fills its own is not.
        own = tensor.contiguous() if whole else tensor.clone(memory_format=torch.contiguous_format)
        self.named[name] = own.cpu()
        return name


def _write(path: Path, tensors: dict[str, Tensor], skeleton: str) -> Path:
    """Write a safetensors file with the umask's permissions, and wait until it is on the disk."""
    path.touch()
    mode = path.stat().st_mode
    sums = {"": zlib.crc32(skeleton.encode()), **{name: _checksum(tensor) for name, tensor in tensors.items()}}
    try:
        save_file(tensors, path, metadata={_KEY: skeleton, _SUMS: json.dumps(sums)})
    except KeyError as error:
        raise ValueError(f"A tensor of the state is {error.args[0]}, which safetensors does not support.") from None
    path.chmod(mode)  # safetensors makes it readable by the owner only
    _fsync(path)
    return path


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def _decode(node: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(node, list):
        return [_decode(item, tensors) for item in node]
    if not isinstance(node, dict):
        return node
    if "$tensor" in node:
        return tensors[node["$tensor"]]
    if "$tuple" in node:
        return tuple(_decode(item, tensors) for item in node["$tuple"])
    pairs = node["$dict"] if "$dict" in node else node.items()
    return {key: _decode(item, tensors) for key, item in pairs}


def _path(where: tuple[str, ...]) -> str:
    return "/".join(where) or "The state"
