"""Torch's idle threads, off the cores that threads of our own are about to use."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import cache

_SOFT = 1
"""Give threads back, keep settings; OpenMP makes new ones for the next operation that wants them."""


def rest() -> None:
    """End this thread's OpenMP team, if there is one: omp_pause_resource_all of OpenMP 5.0.

    Its threads otherwise wait for their next operation in a busy loop of several milliseconds (GNU's, which torch
    comes with on Linux, took 6 ms on two cores), and get a third of the time of two cores meanwhile. This takes 0.1 ms.
    """
    pause = _pause()
    if pause is not None:
        pause(_SOFT)


@cache
def _pause() -> Callable[[int], int] | None:
    """Where torch's OpenMP is old, or hidden, or there is none: None."""
    with suppress(OSError, AttributeError, TypeError):  # a TypeError: Windows has no library of the whole program
        return ctypes.CDLL(None).omp_pause_resource_all
    return None
