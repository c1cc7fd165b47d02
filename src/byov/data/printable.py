"""Names and errors in words that can be printed on one line."""

import os


def printable(name: str) -> str:
    """Return a file's name as text that can be printed and stored, also where its bytes are no UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def reason(error: Exception) -> str:
    """Return the first line of what an error says, or its kind where it says nothing."""
    said = error.strerror if isinstance(error, OSError) else None
    return ((said or str(error)).strip().splitlines() or [type(error).__name__])[0]
