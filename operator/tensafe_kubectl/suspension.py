"""`kubectl tensafe suspend` and `resume`: set `spec.suspend`, and with `--wait` follow until it has an effect.

The write is a merge patch of this one field. It holds the UID of the job that was read, so the API server refuses it if
the job was deleted and created again meanwhile. It does not hold the resource version: each status of the operator
changes that, and the field does not depend on the status.
"""

from __future__ import annotations

import argparse

from tensafe_api.reasons import Phase
from tensafe_kubectl import screen
from tensafe_kubectl.api import Api, Object
from tensafe_kubectl.arguments import add_cluster_options, add_job, options_of
from tensafe_kubectl.connection import Options, connect
from tensafe_kubectl.errors import CONFLICT, FAILED, INTERRUPTED, INVALID_OBJECT, SUCCEEDED, CommandError, Refused
from tensafe_kubectl.following import command, follow, outcome_of
from tensafe_kubectl.reading import JOBS, part, read_job
from tensafe_kubectl.terminal import print_line
from tensorguard.cli.arguments import Subparsers

_EPILOG_SUSPEND = """\
examples:
  kubectl tensafe suspend triage -n clinic
  kubectl tensafe suspend triage -n clinic --wait      return when the checkpoint is saved and the pods are asked to end

The workers finish the steps that are already charged, save a checkpoint and end, within two minutes. What was charged
stays charged. `resume` continues from the checkpoint.

Exit codes: 0 requested, or suspended with --wait; 1 there is no such job, it has ended, or the cluster refuses or does
not answer; 2 invalid arguments; 130 Ctrl-C while it waits: the request stays.
"""
_EPILOG_RESUME = """\
examples:
  kubectl tensafe resume triage -n clinic
  kubectl tensafe resume triage -n clinic --wait       return when the job trains

Exit codes: 0 requested, or with --wait the job trains or has succeeded; 1 there is no such job, it has ended, or the
cluster refuses or does not answer; 2 invalid arguments; 130 Ctrl-C while it waits: the request stays.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the parsers of both verbs."""
    for verb, suspend, text, description, epilog in (
        (
            "suspend",
            True,
            "stop a job at a checkpoint",
            "Stop a job at a checkpoint, from which it can continue.",
            _EPILOG_SUSPEND,
        ),
        ("resume", False, "continue a suspended job", "Continue a suspended job from its checkpoint.", _EPILOG_RESUME),
    ):
        parser = subparsers.add_parser(verb, help=text, description=description, epilog=epilog)
        add_job(parser)
        parser.add_argument("--wait", action="store_true", help="follow the job until the request has had its effect")
        add_cluster_options(parser)
        parser.set_defaults(handler=_set_suspend, suspend=suspend, verb=verb)


def _set_suspend(arguments: argparse.Namespace) -> int:
    options = options_of(arguments)
    api = connect(options)
    job = read_job(api, arguments.name)
    name, phase = arguments.name, screen.phase_of(job)
    if outcome_of(job) is not None and phase != Phase.SUSPENDED:
        raise CommandError(f"the job {name} has ended ({phase}): {arguments.verb} would change nothing")
    if bool(part(job, "spec.suspend")) == arguments.suspend:
        print_line(f"{name}: spec.suspend is {str(arguments.suspend).lower()} already")
    else:
        job = _patch(api, job, arguments.suspend)
        print_line(f"{name}: spec.suspend is {str(arguments.suspend).lower()} now")
    if arguments.wait:
        return _wait(api, options, job, arguments.suspend)
    print_line(f"follow it with: {command('status', options, job, '--watch')}")
    return SUCCEEDED


def _patch(api: Api, job: Object, suspend: bool) -> Object:
    metadata = job["metadata"]
    changes = {"metadata": {"uid": metadata["uid"]}, "spec": {"suspend": suspend}}
    try:
        return api.merge(JOBS, metadata["namespace"], metadata["name"], changes)
    except Refused as refused:
        replaced = refused.status == CONFLICT or (refused.status == INVALID_OBJECT and "metadata.uid" in str(refused))
        if not replaced:
            raise
        raise CommandError(
            f"the job {metadata['name']} was replaced by another one of its name meanwhile: look at it, and try again"
        ) from refused


def _wait(api: Api, options: Options, job: Object, suspend: bool) -> int:
    aim = Phase.SUSPENDED if suspend else Phase.RUNNING

    def over(found: Object) -> object | None:
        phase = screen.phase_of(found)
        return True if phase == aim or (phase != Phase.SUSPENDED and outcome_of(found) is not None) else None

    found = follow(api, options, job, over)
    if found is None:
        return INTERRUPTED
    phase = screen.phase_of(found)
    if phase == aim or (not suspend and outcome_of(found) != FAILED):
        return SUCCEEDED
    raise CommandError(f"the job {job['metadata']['name']} has ended ({phase}) before it was {aim}")
