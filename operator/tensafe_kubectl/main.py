"""The entry point of `kubectl-tensafe`: parses the command line, calls one verb, returns its exit code.

kubectl runs it for `kubectl tensafe ...` and passes all arguments on. Errors of the cluster become one sentence here,
which names the problem and the fix.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tensafe_kubectl.arguments import Parser, add_cluster_options
from tensafe_kubectl.errors import (
    FAILED,
    INTERRUPTED,
    INVALID,
    CommandError,
    Refused,
    Unreachable,
    describe_refusal,
)
from tensorguard.cli.arguments import ShowVersion
from tensorguard.cli.verbs import call_verb

PROGRAM = "kubectl tensafe"
_EPILOG = """\
examples:
  kubectl tensafe run job.yaml -n clinic         apply a manifest and follow the job; Ctrl-C leaves the job running
  kubectl tensafe status -n clinic               the jobs of a namespace
  kubectl tensafe status triage -n clinic        one job on one screen
  kubectl tensafe explain triage -n clinic       why it is not running, and what to do
  kubectl tensafe logs triage -n clinic          the logs of its last attempt, the failed rank first
  kubectl tensafe ledger triage -n clinic        what it has spent, computed again from its charges
  kubectl tensafe statement triage -n clinic     the privacy claim of its final adapter
  kubectl tensafe suspend triage -n clinic       stop it at a checkpoint; `resume` continues it

`kubectl tensafe VERB --help` explains a verb, with examples and exit codes. The plugin has the rights of its caller.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code (`errors` lists them).

    Raises:
        SystemExit: as argparse does, for `--help` and `--version` (code 0) and for invalid arguments (code 2).
    """
    try:
        parser = command_parser()
    except ModuleNotFoundError as error:
        print(f"{PROGRAM}: the package {error.name} is missing: pipx install 'tensafe[kubectl]'", file=sys.stderr)
        return INVALID
    try:
        return call_verb(parser, argv)
    except CommandError as error:
        return _fail(error.exit_code, *error.faults)
    except Refused as refused:
        return _fail(FAILED, describe_refusal(refused))
    except Unreachable as error:
        return _fail(
            FAILED,
            f"the API server {error.server} does not answer ({error}): check the network, and the address in the "
            "kubeconfig with `kubectl cluster-info`",
        )
    except KeyboardInterrupt:
        return _fail(INTERRUPTED, "interrupted")


def command_parser() -> Parser:
    """The parser of the whole command, with one subparser for each verb."""
    from tensafe_kubectl import explain, ledger, logs, run, statement, status, suspension

    parser = Parser(
        prog=PROGRAM,
        description="Show, explain and run the jobs of TenSafe in a cluster.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action=ShowVersion)
    add_cluster_options(parser, default=None)
    parser.set_defaults(handler=None)
    subparsers = parser.add_subparsers(title="verbs", metavar="VERB", parser_class=Parser)
    for verb in (run, status, explain, logs, ledger, statement, suspension):
        verb.add_parser(subparsers)
    return parser


def _fail(exit_code: int, *faults: str) -> int:
    from tensafe_kubectl.terminal import clean

    print("\n".join(map(clean, faults)), file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
