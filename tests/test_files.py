"""Files are written under a fresh name in their own folder, then take their place."""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from byov.files import check_out, naming_file, read_json, replacing, write_json
from byov.pruning import save_sparse
from byov.report import page
from byov.report.drawing import canvas, save

LONG = "x" * 240 + ".json"


def figure(path: Path) -> None:
    made, _ = canvas(2, 2)
    save(made, path.with_suffix(""))


WRITERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "json": (LONG, lambda path: write_json(path, {"numbers": [1, 2]})),
    "page": ("page.html", lambda path: page.write(path, "<html></html>\n")),
    "sparse file": ("net.safetensors", lambda path: save_sparse(nn.Linear(2, 2), path)),
    "figure": ("figure.png", figure),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_no_planted_link_is_followed(tmp_path: Path, kind: str) -> None:
    """Not one at the file's own name, nor at a name that an earlier version took for its unfinished files."""
    name, write = WRITERS[kind]
    folder, victim = tmp_path / "out", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("mine")
    guesses = [f"{name[:235]}.partial", f".{name[:235]}.partial", f".{name[:235]}.{os.getpid()}.tmp"]
    for planted in (name, *guesses):
        (folder / planted).symlink_to(victim)
    write(folder / name)
    assert victim.read_text() == "mine"
    assert (folder / name).is_file()
    assert not (folder / name).is_symlink()
    assert (folder / name).stat().st_mode & 0o777 == victim.stat().st_mode & 0o777, "the permissions that umask says"
    drawn = {"figure.svg"} if kind == "figure" else set()
    assert {path.name for path in folder.iterdir()} == {name, *guesses} | drawn


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text("old")

    def half(error: BaseException) -> None:
        with replacing(path) as fresh:
            fresh.write_text("half")
            raise error

    for error in (KeyboardInterrupt(), ValueError("bad")):
        with pytest.raises(type(error)):
            half(error)
    with pytest.raises(OSError, match="No space left") as full:
        half(OSError(errno.ENOSPC, "No space left on device"))
    assert full.value.filename == str(path), "the system does not say which file a full disk is about"
    with pytest.raises(TypeError):
        write_json(path, torch.zeros(1))
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["kept.json"]


def test_a_file_comes_whole_into_a_new_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "file.json"
    write_json(path, {"σ": 1})
    assert json.loads(path.read_text(encoding="utf-8")) == {"σ": 1}


def test_a_number_of_any_length_is_read(tmp_path: Path) -> None:
    (tmp_path / "long.json").write_text(f'{{"seed": {2**63 - 1}, "long": -1{"0" * 5000}}}')
    assert read_json(tmp_path / "long.json") == {"seed": 2**63 - 1, "long": -math.inf}


def test_an_error_of_the_system_names_its_file() -> None:
    for error, said in (
        (OSError(errno.EIO, "Input/output error"), "[Errno 5] Input/output error: 'mine'"),
        (OSError("No such device"), "mine: No such device."),
        (OSError(errno.EIO, "Input/output error", "theirs"), "[Errno 5] Input/output error: 'theirs'"),
    ):
        with pytest.raises(OSError, match=re.escape(said)), naming_file(Path("mine")):
            raise error


@pytest.mark.skipif(os.name == "nt", reason="there are no pipes in folders")
def test_a_pipe_or_device_is_no_place_for_results(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(ValueError, match="is a device or a pipe"):
            check_out(path, force=True)
