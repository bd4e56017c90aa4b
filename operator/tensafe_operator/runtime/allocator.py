"""Keeps the memory of a long process small: glibc gives freed memory back to the system at once."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of `mallopt`, from malloc.h."""
_BYTES = 64 * 1024


def return_freed_memory() -> None:
    """Set glibc's thresholds for this process, where it uses glibc; call it before other threads start.

    By default, each thread may get an arena of its own, and glibc keeps what a large array has used for the next one.
    With ten jobs that was 5 MB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in ((_TRIM_THRESHOLD, _BYTES), (_MMAP_THRESHOLD, _BYTES), (_ARENA_MAX, 1)):
            mallopt(parameter, value)
