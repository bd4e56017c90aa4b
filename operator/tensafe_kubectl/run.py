"""`kubectl tensafe run`: apply a manifest, and follow the job to its end.

In: the file that `tensafe run` reads as well, with the same `--set`. It is checked here before anything is sent. What
the file sets is applied by server-side apply; defaults stay the cluster's. Ctrl-C ends the command and not the job.
"""

from __future__ import annotations

import argparse
from typing import Any

from tensafe_api.resources.job import API_VERSION, KIND, TenSafeTrainingJob
from tensafe_kubectl.api import Api, Object
from tensafe_kubectl.arguments import add_cluster_options, options_of
from tensafe_kubectl.connection import connect
from tensafe_kubectl.errors import CONFLICT, INVALID, INVALID_OBJECT, NOT_FOUND, SUCCEEDED, CommandError, Refused
from tensafe_kubectl.following import command, follow_to_end
from tensafe_kubectl.reading import JOBS
from tensafe_kubectl.terminal import print_line
from tensorguard.cli.arguments import Subparsers, add_manifest_arguments

_EPILOG = """\
examples:
  kubectl tensafe run job.yaml -n clinic
  kubectl tensafe run job.yaml -n clinic --set spec.training.steps=20 --set metadata.name=triage-short
  kubectl tensafe run job.yaml -n clinic --no-follow       apply it, and return at once
  kubectl tensafe run job.yaml -n clinic && kubectl tensafe statement triage -n clinic

Ctrl-C leaves the job running; the command to follow it again is printed. A job of the same name that has the same spec
is followed; one with another spec is refused by the API server, because its privacy values cannot change.

Exit codes: 0 succeeded; 1 failed, was deleted, or the cluster refuses or does not answer; 2 invalid manifest or
arguments, nothing was sent; 3 the budget ended before the planned steps; 4 the job is suspended; 130 Ctrl-C.
"""
_OF_THE_SERVER = {"uid", "generation", "resource_version", "creation_timestamp"}


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "run",
        help="apply a manifest, and follow the job to its end",
        description="Apply a manifest to the cluster, and follow the job to its end. The exit code is the job's.",
        epilog=_EPILOG,
    )
    add_manifest_arguments(parser)
    parser.add_argument("--no-follow", action="store_true", help="return as soon as the cluster has accepted the job")
    add_cluster_options(parser)
    parser.set_defaults(handler=_run)


def _run(arguments: argparse.Namespace) -> int:
    from tensafe_api.manifest.text import ManifestError, load_manifest

    try:
        job = load_manifest(arguments.manifest, arguments.overrides)
    except ManifestError as error:
        raise CommandError(str(error), INVALID, map(str, error.problems)) from error
    options = options_of(arguments)
    given, named = options.namespace, job.metadata.namespace
    if given and named and given != named:
        raise CommandError(
            f"metadata.namespace: is {named}, and -n is {given}: leave one of them out, or write the same", INVALID
        )
    api = connect(options)
    namespace = given or named or api.namespace
    applied = _apply(api, document_of(job, namespace))
    print_line(f"applied {job.metadata.name} in the namespace {namespace}")
    if arguments.no_follow:
        print_line(f"follow it with: {command('status', options, applied, '--watch')}")
        return SUCCEEDED
    return follow_to_end(api, options, applied)


def document_of(job: TenSafeTrainingJob, namespace: str) -> dict[str, Any]:
    """What the manifest sets, without defaults, without a status, and without the fields that the API server sets."""
    written = job.model_dump(
        by_alias=True, mode="json", exclude_unset=True, exclude={"status": True, "metadata": _OF_THE_SERVER}
    )
    metadata = {**written["metadata"], "namespace": namespace}
    return {**written, "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}


def _apply(api: Api, document: Object) -> Object:
    metadata = document["metadata"]
    try:
        return api.apply(JOBS, metadata["namespace"], metadata["name"], document)
    except Refused as refused:
        if refused.status == INVALID_OBJECT:
            raise CommandError(f"the API server refuses the manifest: {refused}") from refused
        if refused.status == NOT_FOUND and not refused.missing_api:
            raise CommandError(
                f"the namespace {metadata['namespace']} does not exist: `kubectl create namespace "
                f"{metadata['namespace']}`, or write another one with -n"
            ) from refused
        if refused.status == CONFLICT:
            raise CommandError(
                f"other tools own fields of the job {metadata['name']} and have set other values: {refused}. Leave "
                "these fields out of the manifest, or change the job with the tool that owns them"
            ) from refused
        raise
