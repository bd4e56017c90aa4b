"""Switches off core dumps, because the memory of a rank holds records, gradients and keys.

A core dump would write them to a disk that may not be encrypted, or send them to a crash reporter. The limit of size
covers dumps to files. Linux ignores that limit when a program receives the dump, so a filter leaves every memory
mapping out of the dump as well. Child processes inherit both.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

_FILTER = Path("/proc/self/coredump_filter")


def switch_off_core_dumps() -> None:
    """Switch off core dumps of this process and its later children."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # only Linux has the filter
        _FILTER.write_text("0")
