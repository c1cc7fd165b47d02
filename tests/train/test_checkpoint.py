"""Checkpoints come back as they were, or say in one sentence why not, whatever happens while they are written."""

import io
import json
import math
import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from byov.train import checkpoint

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int8, torch.int16]
DTYPES += [torch.int32, torch.int64, torch.complex64, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn]


def same(a: Any, b: Any) -> bool:
    """Equal in type, value and order, to the bit."""
    if isinstance(a, Tensor):
        if not isinstance(b, Tensor) or a.dtype != b.dtype or a.shape != b.shape:
            return False
        raw = [t.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
        return torch.equal(*raw)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and [type(k) for k in a] == [type(k) for k in b] and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b


def tensors() -> st.SearchStrategy[Tensor]:
    def make(shape: list[int], dtype: torch.dtype, transpose: bool) -> Tensor:
        raw = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8)
        tensor = (raw % 2).squeeze(-1).bool() if dtype == torch.bool else raw.view(dtype).squeeze(-1)
        return tensor.T if transpose and tensor.dim() == 2 else tensor

    return st.builds(make, st.lists(st.integers(0, 3), max_size=3), st.sampled_from(DTYPES), st.booleans())


leaves = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())) | tensors()
)
keys = (
    st.text(max_size=4)
    | st.integers(-3, 3)
    | st.sampled_from(["$tensor", "$dict", "$tuple", "__metadata__", "a/b", ""])
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=trees)
def test_any_tree_comes_back_as_it_was(tmp_path: Path, state: Any) -> None:
    checkpoint.save(tmp_path / "any.safetensors", state)
    assert same(checkpoint.load(tmp_path / "any.safetensors"), state)


def test_names_that_would_collide_are_kept_apart(tmp_path: Path) -> None:
    state = {"a/b": torch.tensor(1), "a": {"b": torch.tensor(2)}, 0: torch.tensor(3), "0": torch.tensor(4)}
    checkpoint.save(tmp_path / "new" / "folder" / "x", OrderedDict(state))
    assert same(checkpoint.load(tmp_path / "new" / "folder" / "x"), state)


def test_views_of_one_storage(tmp_path: Path) -> None:
    """Views that overlap, are strided or span it in another shape keep their values; the same tensor stays shared."""
    base = torch.arange(24.0)
    grid = base.view(4, 6)
    state = {
        "base": base,
        "views": [base[3:9], base[5:12], base[::2], grid, grid.t(), grid[:, 1], base[:0], base[7]],
        "expanded": torch.tensor(3.0).expand(2, 2),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "tied": base,
        "parameter": nn.Parameter(base),
    }
    checkpoint.save(tmp_path / "x", state)
    back = checkpoint.load(tmp_path / "x")
    assert back.pop("parameter") is back["base"] is back["tied"]
    del state["parameter"]
    assert same(back, state)
    own = {t.untyped_storage().data_ptr() for t in [back["base"], *back["views"]] if t.numel()}
    assert len(own) == 8


def test_any_safetensors_reader_finds_the_tensors(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "x", {"model": {"fc.weight": torch.ones(2, 3)}, "step": 5})
    with safe_open(tmp_path / "x", framework="pt") as file:
        assert torch.equal(file.get_tensor("model/fc.weight"), torch.ones(2, 3))
        assert json.loads(file.metadata()["byov"])["step"] == 5


def test_peek_reads_the_skeleton_only(tmp_path: Path) -> None:
    path = tmp_path / "x"
    state = {"config": {"lr": 1e-3, "betas": (0.9, 0.999)}, 7: torch.ones(3, 2, dtype=torch.bfloat16)}
    checkpoint.save(path, state)
    raw = path.read_bytes()
    path.write_bytes(raw[:-12] + b"\xff" * 12)  # the tensor's bytes, which peek must not care about
    seen = checkpoint.peek(path)
    assert seen["config"] == state["config"]
    assert (seen[7].is_meta, seen[7].shape, seen[7].dtype) == (True, (3, 2), torch.bfloat16)


def test_every_cut_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x"
    checkpoint.save(path, {"a": torch.arange(4), "b": 1})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        for read in (checkpoint.load, checkpoint.peek):
            with pytest.raises(ValueError, match="truncated"):
                read(path)


def test_every_flipped_byte_is_told_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "x"
    state = {"lr": 0.125, "w": torch.arange(4.0), "n": torch.tensor(3), "e": torch.ones(2, dtype=torch.bfloat16)}
    checkpoint.save(path, state)
    whole, silent = path.read_bytes(), 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        try:
            back = checkpoint.load(path)
        except ValueError as error:
            assert str(path) in str(error)  # noqa: PT017
        else:
            silent += 1  # in the padding, or the names of what holds the checksums
            assert same(back, state)
    assert silent < 16
    flipped = bytearray(whole)
    flipped[-9] ^= 1
    path.write_bytes(flipped)
    with pytest.raises(ValueError, match=r"x is damaged: \w does not match its checksum\. Use another copy\.$"):
        checkpoint.load(path)
    path.write_bytes(whole.replace(b"0.125", b"0.625"))
    with pytest.raises(ValueError, match="x is damaged: its header"):
        checkpoint.peek(path)


def test_a_file_without_checksums_is_of_an_older_byov(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "x", metadata={"byov": '{"a": {"$tensor": "a"}, "b": 1}'})
    assert same(checkpoint.load(tmp_path / "x"), {"a": torch.ones(2), "b": 1})


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        checkpoint.load(path)
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(2)}, buffer)
    for content in (buffer.getvalue(), b"hello, this is a text", b"\0" * 100, (9).to_bytes(8, "little") + b"{" * 9):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="is not a byov checkpoint"):
            checkpoint.load(path)
    for metadata in (None, {"byov": "{}", "crc32": "[]"}):
        save_file({"a": torch.ones(2)}, path, metadata=metadata)
        with pytest.raises(ValueError, match="is not a byov checkpoint"):
            checkpoint.peek(path)
    with pytest.raises(ValueError, match="is a folder"):
        checkpoint.save(tmp_path, {})


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("state", "error", "said"),
    [
        (LOOP, ValueError, "contains itself"),
        ({"a": {"b": {1, 2}}}, TypeError, "a/b is a set"),
        ({"a": [object()]}, TypeError, "a/0 is a object"),
        ({1.5: 0}, TypeError, "key 1.5"),
        ({True: 0}, TypeError, "key True"),
        ({"a": torch.ones(2, 2).to_sparse()}, ValueError, "sparse"),
        ({"a": torch.ones(2, device="meta")}, ValueError, "meta"),
        ({"a": torch.ones(2, dtype=torch.complex128)}, ValueError, "complex128"),
    ],
)
def test_what_cannot_be_saved_changes_nothing(tmp_path: Path, state: Any, error: type, said: str) -> None:
    path = tmp_path / "x"
    checkpoint.save(path, 1)
    with pytest.raises(error, match=said):
        checkpoint.save(path, state)
    assert checkpoint.load(path) == 1
    assert os.listdir(tmp_path) == ["x"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    checkpoint.save(path, "old")

    def full(*args: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"x could not be written: No space left on device\. The checkpoint before it is"):
        checkpoint.save(path, "new")
    monkeypatch.undo()
    assert checkpoint.load(path) == "old"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.skipif(os.name == "nt", reason="permissions are POSIX's")
def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        checkpoint.save(tmp_path / "x", 1)
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o640


KILLER = """
import os, signal, sys
import torch
from byov.train import checkpoint

path = sys.argv[1]


def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


def write_half(tensors, file, metadata):
    file.write_bytes(b"half a fi")
    die()


def replace_and_die(*args, replace=os.replace):
    replace(*args)
    die()


moments = [(checkpoint, "save_file", write_half, 0), (os, "fsync", die, 0), (os, "replace", die, 0)]
moments += [(os, "replace", replace_and_die, 1)]
checkpoint.save(path, {"step": 0, "a": torch.zeros(1000)})
for module, name, killing, expected in moments:
    child = os.fork()
    if child == 0:
        setattr(module, name, killing)
        checkpoint.save(path, {"step": 1, "a": torch.ones(1000)})
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, f"not killed at {name}"
    state = checkpoint.load(path)
    assert state["step"] == expected and (state["a"] == expected).all(), f"{state} after a kill at {name}"
"""


@pytest.mark.skipif(os.name == "nt", reason="forks")
def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    """Killed half-way through the file, before it is on the disk, before it is in place, and after that."""
    command = [sys.executable, "-c", KILLER, str(tmp_path / "x")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    left = [path for path in tmp_path.iterdir() if path.name != "x"]
    assert len(left) == 4
    checkpoint.clear(tmp_path / "x")
    assert os.listdir(tmp_path) == ["x"]
