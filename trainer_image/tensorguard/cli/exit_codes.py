"""How a call of `tensafe` ends.

The codes are part of the command's contract: scripts branch on them. Verbs raise `Refused` for whatever the person at
the keyboard can mend; `main` prints it and exits.
"""

from __future__ import annotations

SUCCEEDED = 0
FAILED = 1
"""The job failed, or what was to be read is not what was written."""
INVALID = 2
"""The manifest or the arguments are wrong; nothing was run."""
EXHAUSTED = 3
"""The budget ended before the planned steps."""
INTERRUPTED = 130
"""Ctrl-C or SIGTERM."""


class Refused(Exception):
    """What was asked for cannot be done. `str()` is one line for each thing to mend."""

    def __init__(self, message: str, exit_code: int = INVALID) -> None:
        super().__init__(message)
        self.exit_code = exit_code
