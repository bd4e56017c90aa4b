"""The command `tensafe` in the process of a test."""

from __future__ import annotations

from tensorguard.cli.main import main


def call(*arguments: str) -> int:
    """The exit code of `tensafe`, returned or raised."""
    try:
        code = main(list(arguments))
    except SystemExit as exit_:
        code = exit_.code  # type: ignore[assignment]
    return int(code or 0)
