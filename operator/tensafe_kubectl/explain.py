"""`kubectl tensafe explain`: why a job is not running, and what to do.

In: the job, its pods, RayJob and Workload, and the warnings about them. Out: the reason, the fix, and what was seen.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict

from tensafe_api.reasons import Phase
from tensafe_kubectl import screen
from tensafe_kubectl.api import Api, Object
from tensafe_kubectl.arguments import add_cluster_options, add_job, add_output, options_of
from tensafe_kubectl.connection import Options, connect
from tensafe_kubectl.diagnosis import Diagnosis, Seen, diagnose
from tensafe_kubectl.errors import SUCCEEDED
from tensafe_kubectl.following import command
from tensafe_kubectl.reading import (
    Notes,
    part,
    read_job,
    read_pod_group_events,
    read_pods,
    read_ray_job,
    read_warnings,
    read_workload,
)
from tensafe_kubectl.terminal import PHASE_STYLES, print_json, print_line, print_note
from tensorguard.cli.arguments import Subparsers

_EPILOG = """\
examples:
  kubectl tensafe explain triage -n clinic
  kubectl tensafe explain triage -n clinic -o json | jq -r .fix

Reason and fix are those of docs/reference/conditions-and-reasons.md. Where no operator has written a reason, the pods
and the Events are searched here, and the output says so.

Exit codes: 0 explained; 1 there is no such job, or the cluster refuses or does not answer; 2 invalid arguments.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "explain",
        help="explain why a job is not running, and what to do",
        description="Explain why a job is not running and what to do, from its conditions, its pods, its queue and\n"
        "the warnings about them.",
        epilog=_EPILOG,
    )
    add_job(parser)
    add_output(parser)
    add_cluster_options(parser)
    parser.set_defaults(handler=_explain)


def _explain(arguments: argparse.Namespace) -> int:
    options = options_of(arguments)
    api = connect(options)
    job, notes = read_job(api, arguments.name), Notes()
    seen = _look(api, job, notes)
    found = diagnose(seen, time.time())
    if arguments.output == "json":
        metadata = job["metadata"]
        head = {"name": metadata["name"], "namespace": metadata["namespace"], "phase": part(job, "status.phase")}
        print_json({**head, **asdict(found), "notRead": notes.sentences})
        return SUCCEEDED
    # A RayJob that may not be read may exist.
    is_gone = seen.ray_job is None and not any("rayjobs" in each for each in notes.sentences)
    _show(options, job, found, notes, with_driver=not is_gone)
    return SUCCEEDED


def _look(api: Api, job: Object, notes: Notes) -> Seen:
    pods = notes.try_to(lambda: read_pods(api, job))
    ray_job = notes.try_to(lambda: read_ray_job(api, job))
    workload, no_workload = None, False
    if ray_job is not None and screen.phase_of(job) == Phase.QUEUED:
        queued, known = ray_job, len(notes.sentences)
        workload = notes.try_to(lambda: read_workload(api, queued))
        no_workload = workload is None and len(notes.sentences) == known
    warnings = notes.try_to(lambda: read_warnings(api, job, pods or ()))
    if warnings is not None and screen.phase_of(job) == Phase.STARTING:
        warnings += read_pod_group_events(api, job)
    return Seen(job, pods, warnings, ray_job, workload, no_workload)


def _show(options: Options, job: Object, found: Diagnosis, notes: Notes, *, with_driver: bool) -> None:
    phase = screen.phase_of(job)
    style = PHASE_STYLES.get(phase, "bold")
    print_line((job["metadata"]["name"], "bold cyan"), "  ", (phase, style), "  ", (found.reason, "bold"))
    print_line()
    print_line(found.what)
    if not found.by_operator:
        print_line("(No operator has written this: it is what this command sees.)")
    if found.fix:
        print_line()
        print_line(("What to do: ", "bold"), found.fix)
    if attempts := part(job, "status.attempts"):
        for line in _where_to_read(options, job, attempts[-1])[: 2 if with_driver else 1]:
            print_line(line)
    if found.evidence:
        print_line()
        print_line(("Seen:", "bold"))
        for sentence in found.evidence:
            print_line(f"  - {' '.join(sentence.split())}")
    for note in notes.sentences:
        print_note(f"not seen: {note}")


def _where_to_read(options: Options, job: Object, attempt: Object) -> list[str]:
    """The commands that show more of a failed attempt."""
    if not attempt.get("endTime") or attempt.get("exitCode") is None:
        return []
    namespace = job["metadata"]["namespace"]
    driver = f"kubectl get rayjob {attempt.get('rayJobName')} -n {namespace} -o jsonpath='{{.status.message}}'"
    return [
        f"Logs of the workers: {command('logs', options, job, '--attempt', str(attempt['number']))}",
        f"Last lines of the driver, which may quote records: {driver}",
    ]
