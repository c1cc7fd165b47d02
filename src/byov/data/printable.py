"""File names and errors as text that can be printed on one line."""

import os


def printable(name: str) -> str:
    """Return a file name as text that can be printed and stored, even if its bytes are not UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def reason(error: Exception) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    said = error.strerror if isinstance(error, OSError) else None
    return ((said or str(error)).strip().splitlines() or [type(error).__name__])[0]
