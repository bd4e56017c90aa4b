"""`kubectl tensafe logs`: the logs of an attempt's pods, that of the rank that failed first on top.

In: the pods of one attempt, and the ends of their logs. Out: the logs, each below a line with the name of its pod. A
worker writes a log record of the kind `lost` when its incarnation ends with an error. Together with the exit codes of
containers, these records order the pods.
"""

from __future__ import annotations

import argparse
import json
import math
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tensafe_api.timestamps import parse_time
from tensafe_kubectl.api import Api, Object
from tensafe_kubectl.arguments import add_cluster_options, add_job, options_of, whole_number
from tensafe_kubectl.connection import connect
from tensafe_kubectl.errors import (
    FAILED,
    FORBIDDEN,
    INTERRUPTED,
    NOT_FOUND,
    SUCCEEDED,
    CommandError,
    Refused,
    Unreachable,
)
from tensafe_kubectl.reading import PODS, RAY_JOBS, part, read_job, read_pods
from tensafe_kubectl.terminal import clean, clean_log, print_note
from tensafe_operator import names
from tensorguard.cli.arguments import Subparsers

_EPILOG = """\
examples:
  kubectl tensafe logs triage -n clinic                       the last attempt, the rank that failed first on top
  kubectl tensafe logs triage -n clinic --attempt 1
  kubectl tensafe logs triage -n clinic -f                    follow all pods; each line begins with the pod
  kubectl tensafe logs triage -n clinic --tail 50 --workers   the last lines of the workers

The workers write one JSON object a line, between Ray's own lines. The driver writes in the head pod; its log may quote
records. KubeRay removes the pods of an attempt when it has ended, and their logs with them. The RayJob of the attempt
then has the last lines of the driver, for ten minutes at least; with podsTTLSeconds until the next attempt starts.

Exit codes: 0 shown; 1 there is no such job, it has no pods now, a log cannot be read, or the cluster refuses or does
not answer; 2 invalid arguments; 130 Ctrl-C.
"""
_INSPECTED_LINES = "200"
_WAITING_LINES = 64
"""Lines of all pods that were read and are not printed yet. Each may have a megabyte."""
_NEVER = float("inf")


@dataclass(frozen=True)
class Source:
    """One container whose log is shown.

    Attributes:
        role: head or worker.
        rank: None where the log does not show it.
        failed: when it failed, in seconds since the epoch; `_NEVER` if it did not.
        why: how it failed, in a few words.
    """

    pod: str
    container: str
    role: str
    rank: int | None = None
    failed: float = _NEVER
    why: str = ""

    @property
    def title(self) -> str:
        rank = f", rank {self.rank}" if self.rank is not None else ""
        return f"==> {self.pod} ({self.role}{rank}){f': {self.why}' if self.why else ''} <=="


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "logs",
        help="show the logs of an attempt, the failed rank first",
        description="Show the logs of an attempt's pods, that of the rank that failed first on top.",
        epilog=_EPILOG,
    )
    add_job(parser)
    parser.add_argument(
        "--attempt", metavar="N", type=whole_number, help="number of the attempt (default: the last one)"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="follow the logs of all pods until they end")
    parser.add_argument("-p", "--previous", action="store_true", help="the container's instance before a restart")
    parser.add_argument(
        "--tail", metavar="LINES", type=whole_number, help="only the last lines of each pod (default: all)"
    )
    parser.add_argument("--workers", action="store_true", help="leave out the head pod")
    add_cluster_options(parser)
    parser.set_defaults(handler=_logs)


def _logs(arguments: argparse.Namespace) -> int:
    api = connect(options_of(arguments))
    job = read_job(api, arguments.name)
    number = arguments.attempt or _last_attempt(job)
    pods = read_pods(api, job, number)
    if arguments.workers:
        pods = [pod for pod in pods if _role(pod) == "worker"]
    if not pods:
        raise CommandError(_no_pods(api, job, number, arguments.workers))
    namespace = job["metadata"]["namespace"]
    sources = order([_source(api, namespace, pod, arguments.previous) for pod in pods])
    options = {
        **({"tailLines": str(arguments.tail)} if arguments.tail else {}),
        **({"previous": "true"} if arguments.previous else {}),
        **({"follow": "true"} if arguments.follow else {}),
    }
    try:
        if arguments.follow and len(sources) > 1:
            return _follow(api, namespace, sources, options)
        return _print_each(api, namespace, sources, options)
    except KeyboardInterrupt:
        print_note("interrupted: the job continues in the cluster")
        return INTERRUPTED


def order(sources: Sequence[Source]) -> list[Source]:
    """The sources in the order of their display: those that failed first, then workers by rank, then the head."""
    return sorted(
        sources,
        key=lambda each: (each.failed, each.role != "worker", _NEVER if each.rank is None else each.rank, each.pod),
    )


def failure_in_log(lines: Sequence[str]) -> tuple[int | None, float, str]:
    """The rank in the log records of a worker, and when and why its last incarnation was lost.

    Other programs write to the log as well: a line that only looks like a record is ignored.
    """
    rank, failed, why = None, _NEVER, ""
    for line in lines:
        if not line.startswith('{"kind"'):
            continue
        try:
            record: dict[str, Any] = json.loads(line)
            when, found = float(record.get("time") or 0), record.get("rank", rank)
        except (ValueError, TypeError, OverflowError, RecursionError):
            continue
        if math.isnan(when) or not (found is None or type(found) is int):
            continue
        rank = found
        if record.get("kind") == "lost":
            failed, why = when, f"{record.get('reason')}: {record.get('message')}"
        elif record.get("kind") == "started":
            failed, why = _NEVER, ""  # a later incarnation
    return rank, failed, why


def failure_of_pod(pod: Object) -> tuple[str, float, str]:
    """The container of a pod to look at, and when and why it failed."""
    status = pod.get("status") or {}
    containers: Sequence[Object] = part(pod, "spec.containers") or ()
    main = str(containers[0]["name"]) if containers else ""
    found = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    for container in found:
        for state in (container.get("state") or {}, container.get("lastState") or {}):
            ended = state.get("terminated") or {}
            if ended.get("exitCode"):
                when = parse_time(ended.get("finishedAt"))
                why = f"{ended.get('reason') or 'Error'}, exit code {ended['exitCode']}"
                return container["name"], 0.0 if when is None else when, why
    return main, _NEVER, ""


def _source(api: Api, namespace: str, pod: Object, previous: bool) -> Source:
    name, role = pod["metadata"]["name"], _role(pod)
    container, failed, why = failure_of_pod(pod)
    rank = None
    if role == "worker" and not previous:
        try:
            tail = list(api.log(PODS, namespace, name, {"container": container, "tailLines": _INSPECTED_LINES}))
        except Refused as refused:
            if refused.status == FORBIDDEN:
                raise
            tail = []  # the container has not started: its own turn reports it
        rank, lost, message = failure_in_log([line.decode(errors="replace") for line in tail])
        if lost < _NEVER:
            failed, why = min(failed, lost), message
    if not why and not part(pod, "spec.nodeName"):
        why = "it has no node yet"
    return Source(name, container, role, rank, failed, why)


def _print_each(api: Api, namespace: str, sources: Sequence[Source], options: dict[str, str]) -> int:
    exit_code = SUCCEEDED
    for source in sources:
        print(clean(source.title), flush=True)
        try:
            for line in _lines(api, namespace, source, options):
                _write(line)
        except Refused as refused:
            if refused.status == FORBIDDEN:
                raise
            print_note(f"no log: {refused}")
            exit_code = FAILED
        print()
    return exit_code


def _follow(api: Api, namespace: str, sources: Sequence[Source], options: dict[str, str]) -> int:
    """Print the lines of all pods as they come, each with its pod's name, until all have ended."""
    lines: queue.Queue[tuple[Source, bytes | None]] = queue.Queue(_WAITING_LINES)

    def carry(source: Source) -> None:
        try:
            for line in _lines(api, namespace, source, options):
                lines.put((source, line))
        except (Refused, Unreachable) as error:
            lines.put((source, clean(f"no log: {error}").encode()))
        lines.put((source, None))

    for source in sources:
        threading.Thread(target=carry, args=(source,), daemon=True).start()
    open_ = len(sources)
    while open_:
        source, line = lines.get()
        if line is None:
            open_ -= 1
        else:
            _write(f"[{source.pod}] ".encode() + line)
    return SUCCEEDED


def _lines(api: Api, namespace: str, source: Source, options: dict[str, str]) -> Iterator[bytes]:
    return api.log(PODS, namespace, source.pod, {"container": source.container, **options})


def _write(line: bytes) -> None:
    """Write a line: cleaned on a terminal, else as it is, because a log may have any encoding."""
    if sys.stdout.isatty():
        print(clean_log(line), flush=True)
        return
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def _role(pod: Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(names.RAY_NODE_TYPE, "pod"))


def _last_attempt(job: Object) -> int | None:
    attempts = part(job, "status.attempts") or ()
    return attempts[-1]["number"] if attempts else None


def _no_pods(api: Api, job: Object, number: int | None, workers: bool) -> str:
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    attempts = {each["number"]: each for each in part(job, "status.attempts") or ()}
    if number is None:
        return (
            f"the job {name} has no attempt yet, so there are no logs: `kubectl tensafe explain {name} -n {namespace}`"
        )
    if number not in attempts:
        known = ", ".join(map(str, attempts)) or "none"
        return f"the job {name} has no attempt {number}: its attempts are {known}"
    attempt = attempts[number]
    if not attempt.get("endTime"):
        what = "worker pods" if workers else "pods"
        return f"attempt {number} of the job {name} has no {what} now: `kubectl tensafe explain {name} -n {namespace}`"
    return (
        f"the pods of attempt {number} are gone: KubeRay removes them when an attempt has ended. It ended with "
        f"{clean(attempt.get('reason'))}: {clean(attempt.get('message')).rstrip('.')}. "
        f"{_what_is_left(api, job, attempt)}"
    )


def _what_is_left(api: Api, job: Object, attempt: Object) -> str:
    """Where the end of the driver's log is, or which pods still have logs."""
    name, namespace = attempt.get("rayJobName"), job["metadata"]["namespace"]
    try:
        api.get(RAY_JOBS, namespace, str(name))
    except Refused as refused:
        if refused.status == NOT_FOUND:
            found = sorted({names.attempt_of(pod) or 0 for pod in read_pods(api, job)} - {0})
            others = f" There are pods of: {', '.join(f'attempt {each}' for each in found)}." if found else ""
            return f"Its RayJob {name} is gone, too, and the log of its driver with it.{others}"
    return (
        f"Its RayJob keeps the last lines of the driver, which may quote records: kubectl get rayjob {name} "
        f"-n {namespace} -o jsonpath='{{.status.message}}'"
    )
