"""Recognises a full disk behind an error, whatever raised it.

In comes an exception of any kind; out comes a phrase with the folder, or None. A failed write names no file by itself:
`names_file` adds it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full file system, and of a user's exhausted quota."""


def describe_full_disk(error: BaseException) -> str | None:
    """What is full, such as "no space left on device in /data/run"; None where `error` has another cause."""
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno in _FULL:
            what = os.strerror(cause.errno)
            place = f" in {Path(os.fsdecode(cause.filename)).parent}" if cause.filename else ""
            return f"{what[0].lower()}{what[1:]}{place}"
        if type(cause).__name__ == "OutOfDiskError":  # Ray's, which is not imported here
            return "no space left on device in the folder for temporary files (TMPDIR)"
    return None


@contextmanager
def names_file(path: Path) -> Iterator[None]:
    """Give an OSError of the with block the name of the file that is written there, unless it has one."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def _causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and all errors that it was raised from, or while handling; also across a process of Ray (`cause`)."""
    found: list[BaseException] = []
    left = [error]
    while left:
        each = left.pop(0)
        if any(each is other for other in found):
            continue
        found.append(each)
        yield each
        related = (getattr(each, "cause", None), each.__cause__, each.__context__)
        left += [other for other in related if isinstance(other, BaseException)]
