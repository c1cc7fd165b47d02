"""One writer for a run's folder: a lock of the operating system, which no kill leaves behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAME = ".lock"
_UNKNOWN = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold the lock of a run's folder, which is made if need be; raise BlockingIOError where another process has it.

    The kernel frees it when this process ends, however that comes about. It is POSIX's lock (`lockf`), not BSD's
    (`flock`): that one would live on in the workers of a loader, which may survive a kill of their parent by seconds.
    Without effect on Windows, and on a file system that has no locks.
    """
    run.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(os.open(run / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise BlockingIOError(f"{run} is being written by another process: wait for it, or end it.") from None
            if error.errno not in _UNKNOWN:
                raise
        yield
