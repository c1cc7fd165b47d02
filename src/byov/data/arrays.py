"""Read the arrays of an .npz file without pickle; every error is one sentence that names the file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from byov.data.datasets import check_memory
from byov.data.printable import reason


class Arrays:
    """The arrays of an .npz file by name, each read on first access."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).expanduser()
        with self.errors_named("is not a readable .npz file"):
            if self.path.exists() and not self.path.is_file():  # reading from a pipe may block forever
                raise ValueError("it is a folder, a pipe or a device")
            self._file = np.load(self.path, allow_pickle=False)
            self.names = tuple(self._file.files)
            for member in self._file.zip.infolist():  # a flipped byte may hide an array without an error
                self._file.zip.open(member).close()
                if member.comment:  # numpy writes none: these are other members' entries
                    raise ValueError("its directory is damaged")

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.names:
            raise ValueError(f"{self.path} has no array {name!r}; it has the arrays {', '.join(sorted(self.names))}.")
        with self.errors_named(f"has no readable array {name!r}"):
            stored = next((m for m in self._file.zip.infolist() if m.filename in (name, f"{name}.npy")), None)
            check_memory(stored.file_size if stored else 0, "it")  # a few compressed bytes may expand to this
            array = self._file[name]
        if not isinstance(array, np.ndarray):  # numpy returns other members as bytes
            raise ValueError(f"{self.path}: {name!r} is not an array.")
        return array

    @contextmanager
    def errors_named(self, what: str) -> Iterator[None]:
        """Turn any exception into a `ValueError` that begins with the file: decoders may raise anything."""
        try:
            yield
        except Exception as error:
            raise ValueError(f"{self.path} {what}: {reason(error).rstrip('.')}.") from error
