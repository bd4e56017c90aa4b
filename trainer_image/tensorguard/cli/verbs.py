"""Calls the verb of a command line. `tensafe` and `kubectl tensafe` use it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from tensorguard.cli.arguments import Parser
from tensorguard.cli.exit_codes import FAILED, INVALID


def call_verb(parser: Parser, argv: Sequence[str] | None) -> int:
    """Parse a command line, call its verb, and return the exit code. Without a verb the help is printed.

    Args:
        argv: the arguments; None: those of the process.

    Raises:
        SystemExit: as argparse does, for `--help` and `--version` (code 0) and for invalid arguments (code 2).
        Exception: whatever the verb raises.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a pipe on Windows and some terminals have no ε
    arguments = parser.parse_args(argv)
    if arguments.handler is None:
        parser.print_help(sys.stderr)
        return INVALID
    try:
        exit_code: int = arguments.handler(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has ended (`tensafe ... | head`). The interpreter's flush at exit must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return exit_code
