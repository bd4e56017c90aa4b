"""The entry point of `tensafe`: reads the command line, calls one verb, returns its exit code.

Nothing heavy is imported here (a test starts an interpreter and looks): verbs import torch, Ray and dp-accounting
when they are called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from tensorguard.cli import account, ledger, run, validate
from tensorguard.cli.arguments import Parser, ShowVersion
from tensorguard.cli.exit_codes import FAILED, INTERRUPTED, INVALID, Refused

_EPILOG = """\
examples:
  tensafe validate job.yaml                     what does this manifest come to, and is it right?
  tensafe run job.yaml --output-dir runs/first  train; stop with Ctrl-C, go on with --resume
  tensafe ledger runs/first                     what was spent?
  tensafe account --target-epsilon 8 --sample-rate 512/6920 --steps 81 --delta 1e-5
                                                how much noise does this budget need?

`tensafe VERB --help` explains a verb with examples.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code (`exits` lists them).

    Raises:
        SystemExit: as argparse does, for `--help` and `--version` (code 0) and for unreadable arguments (code 2).
    """
    parser = command_parser()
    arguments = parser.parse_args(argv)
    if arguments.act is None:
        parser.print_help(sys.stderr)
        return INVALID
    try:
        exit_code: int = arguments.act(arguments)
        sys.stdout.flush()
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return refusal.exit_code
    except KeyboardInterrupt:
        print("tensafe: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone (`tensafe ... | head`); the interpreter's flush at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    return exit_code


def command_parser() -> Parser:
    """The parser of the whole command, with one subparser for each verb."""
    parser = Parser(
        prog="tensafe",
        description="Fine-tune language models with differential privacy: a manifest in, an adapter and a claim out.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action=ShowVersion)
    parser.set_defaults(act=None)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=Parser)
    for verb in (run, validate, account, ledger):
        verb.add(verbs)
    return parser


if __name__ == "__main__":
    sys.exit(main())
