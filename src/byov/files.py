"""Files of results: written whole or not at all, and never over what is there unasked."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def check_out(path: Path, force: bool = False, option: str = "--out") -> None:
    """Refuse a file that could not be written, or that would be lost, before any work is done for it."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: {option} takes the name of a file.")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a device or a pipe: {option} takes the name of a file.")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists: choose another {option}, or say --force.")
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    if not nearest.is_dir():
        raise NotADirectoryError(f"{nearest} is a file: there can be no {path.name} below it.")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the path of a fresh file to write, which then replaces `path`; on an error `path` stays as it was.

    The file is new and its name random, so that no link planted there is followed. It lies in the same folder, with the
    same ending, and with the permissions that the umask says. An error of the system names `path`.
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
    """Write `content` whole or not at all."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8")
