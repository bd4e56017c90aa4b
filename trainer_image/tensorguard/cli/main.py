"""The entry point of `tensafe`: parses the command line, calls one verb, returns its exit code.

Nothing heavy is imported here (a test starts an interpreter and checks): verbs import torch, Ray and dp-accounting
when they are called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tensafe_api.sanitize import clean_lines
from tensorguard.cli import (
    account,
    audit,
    decrypt,
    export,
    inspect,
    keygen,
    ledger,
    plan,
    run,
    statement,
    validate,
    verify,
)
from tensorguard.cli.arguments import Parser, ShowVersion
from tensorguard.cli.exit_codes import INTERRUPTED, CommandError
from tensorguard.cli.verbs import call_verb

_EPILOG = """\
examples:
  tensafe validate job.yaml                     check a manifest, and show ε, σ and the number of steps
  tensafe inspect job.yaml                      show what it would train: records, units, lengths, faults in the data
  tensafe plan job.yaml                         compare numbers of steps and batches by their noise
  tensafe run job.yaml --output-dir runs/first  train; Ctrl-C saves a checkpoint, --resume continues
  tensafe ledger runs/first                     show the ε that a run has spent
  tensafe statement runs/first/checkpoints/final --format html -o statement.html
                                                write the privacy statement as a page
  tensafe audit job.yaml                        attack the privacy claim of a job with canaries
  tensafe export runs/first --to mlflow         send its public figures to MLflow, W&B or TensorBoard
  tensafe keygen ~/keys                         make the key pair that signs checkpoints
  tensafe verify adapter --public-key signer.pub.pem
                                                check an adapter that you received: files, signer, ε
  tensafe decrypt adapter --identity age-identity.txt --output plain
                                                decrypt an adapter that was encrypted for you
  tensafe account --target-epsilon 8 --sample-rate 512/6920 --steps 81 --delta 1e-5
                                                compute the noise that a budget needs

`tensafe VERB --help` explains a verb and its options, with examples.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code (`exit_codes` lists them).

    Raises:
        SystemExit: as argparse does, for `--help` and `--version` (code 0) and for invalid arguments (code 2).
    """
    try:
        return call_verb(command_parser(), argv)
    except CommandError as error:
        print(clean_lines(error), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("tensafe: interrupted", file=sys.stderr)
        return INTERRUPTED


def command_parser() -> Parser:
    """The parser of the whole command, with one subparser for each verb."""
    parser = Parser(
        prog="tensafe",
        description="Fine-tune language models with differential privacy, from one manifest.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action=ShowVersion)
    parser.set_defaults(handler=None)
    subparsers = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=Parser)
    for verb in (run, validate, inspect, plan, account, ledger, audit, statement, verify, decrypt, keygen, export):
        verb.add_parser(subparsers)
    return parser


if __name__ == "__main__":
    sys.exit(main())
