"""`kubectl tensafe status`: the story of a job on one screen, or the jobs of a namespace.

In: the job, and the warnings about it. Out: phase, ε, steps, attempts, conditions that need attention, checkpoints,
and the last warnings. With `--watch`, the changes until the job ends.
"""

from __future__ import annotations

import argparse
import time

from tensafe_kubectl import screen
from tensafe_kubectl.api import Api
from tensafe_kubectl.arguments import (
    add_all_namespaces,
    add_cluster_options,
    add_job,
    add_output,
    options_of,
    refuse_name_in_all_namespaces,
)
from tensafe_kubectl.connection import connect
from tensafe_kubectl.errors import INVALID, SUCCEEDED, CommandError
from tensafe_kubectl.following import follow_to_end
from tensafe_kubectl.reading import Notes, read_job, read_jobs, read_pods, read_warnings
from tensafe_kubectl.terminal import print_json
from tensorguard.cli.arguments import Subparsers

_EPILOG = """\
examples:
  kubectl tensafe status                        the jobs of the namespace
  kubectl tensafe status -A                     the jobs of all namespaces
  kubectl tensafe status triage -n clinic       one job: ε, steps, attempts, problems, checkpoints, warnings
  kubectl tensafe status triage --watch         follow it until it ends; Ctrl-C leaves the job running
  kubectl tensafe status triage -o json | jq .status.privacy.epsilonSpent

ε spent is the ε of the charged steps, or of somewhat more while a job trains. ε claimed is the figure to sign off: it
covers the planned steps.

Exit codes: 0 shown; 1 there is no such job, or the cluster refuses or does not answer; 2 invalid arguments. With
--watch, that of the job: 0 succeeded, 1 failed, 3 the budget ended before the planned steps, 4 suspended; 130 Ctrl-C.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "status",
        help="show a job on one screen, or the jobs of a namespace",
        description="Show a job on one screen: phase, ε, steps, attempts with their reasons, conditions that need\n"
        "attention, checkpoints and the last warnings. Without a name, list the jobs of the namespace.",
        epilog=_EPILOG,
    )
    add_job(parser, optional="list the jobs")
    add_all_namespaces(parser, "jobs")
    parser.add_argument("-w", "--watch", action="store_true", help="follow the job until it ends")
    add_output(parser)
    add_cluster_options(parser)
    parser.set_defaults(handler=_status)


def _status(arguments: argparse.Namespace) -> int:
    refuse_name_in_all_namespaces(arguments, "status: a job")
    if arguments.watch and (not arguments.name or arguments.output == "json"):
        raise CommandError("status: --watch follows one job as text: write NAME, without -o json", INVALID)
    options = options_of(arguments)
    api = connect(options)
    if not arguments.name:
        return _list(api, None if arguments.all_namespaces else api.namespace, arguments.output)
    if arguments.watch:
        return follow_to_end(api, options, read_job(api, arguments.name))
    job, notes = read_job(api, arguments.name), Notes()
    pods = notes.try_to(lambda: read_pods(api, job)) or []
    warnings = notes.try_to(lambda: read_warnings(api, job, pods))
    if arguments.output == "json":
        print_json(screen.as_json(job, warnings, notes.sentences))
    else:
        screen.show(job, warnings or [], notes.sentences, time.time())
    return SUCCEEDED


def _list(api: Api, namespace: str | None, output: str) -> int:
    jobs = read_jobs(api, namespace)
    if output == "json":
        print_json({"jobs": [screen.row_as_json(job) for job in jobs]})
    else:
        screen.show_list(jobs, namespace, time.time())
    return SUCCEEDED
