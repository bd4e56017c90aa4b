"""Exit codes of `tensafe`, and the error that verbs raise for a mistake that the user can fix.

The codes are part of the command's contract: scripts branch on them. `main` prints a `CommandError` and exits.
"""

from __future__ import annotations

SUCCEEDED = 0
FAILED = 1
"""The job failed, or a ledger was edited or is damaged."""
INVALID = 2
"""The manifest or the arguments are invalid; nothing was run."""
EXHAUSTED = 3
"""The budget ended before the planned steps."""
INTERRUPTED = 130
"""Ctrl-C or SIGTERM."""


class CommandError(Exception):
    """The command cannot run as given. `str()` is one line for each fault, with its fix."""

    def __init__(self, message: str, exit_code: int = INVALID) -> None:
        super().__init__(message)
        self.exit_code = exit_code
