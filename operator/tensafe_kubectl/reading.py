"""Reads a job and what belongs to it, as far as the caller's rights allow.

The name of a job comes in; plain objects go out. Only the job itself is required. What the caller may not read is
absent, and a note names the missing right, so that no screen looks complete when it is not.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tensafe_api.resources.job import KIND
from tensafe_api.resources.ledger import LEDGER_KIND
from tensafe_api.timestamps import parse_time
from tensafe_kubectl.api import Api, Object
from tensafe_kubectl.errors import FORBIDDEN, NOT_FOUND, CommandError, Refused, missing_right
from tensafe_operator import names
from tensafe_operator.kinds import KINDS
from tensafe_operator.runtime.objects import Resource

T = TypeVar("T")
JOBS, LEDGERS, RAY_JOBS, PODS = (KINDS.resources[kind] for kind in (KIND, LEDGER_KIND, "RayJob", "Pod"))
EVENTS = Resource("", "v1", "events")
NAMESPACES = Resource("", "v1", "namespaces")
WORKLOADS = tuple(Resource("kueue.x-k8s.io", version, "workloads") for version in ("v1beta2", "v1beta1"))
"""Kueue's Workloads, in the versions that it serves, the newest first."""
_SHOWN_NAMES = 8


@dataclass
class Notes:
    """What could not be read, one sentence each."""

    sentences: list[str] = field(default_factory=list)

    def try_to(self, read: Callable[[], T]) -> T | None:
        """What `read` returns; None where the caller may not read it, or where it does not exist."""
        try:
            return read()
        except Refused as refused:
            if refused.status == FORBIDDEN:
                self.sentences.append(missing_right(refused))
            elif refused.status != NOT_FOUND:
                raise
            return None


def part(body: Mapping[str, Any] | None, path: str) -> Any:
    """The value at a dotted path of an object, such as status.privacy.delta; None where it is absent."""
    value: Any = body
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def read_job(api: Api, name: str) -> Object:
    """The job of this name in the namespace.

    Raises:
        CommandError: there is none. The message lists jobs with similar names.
    """
    try:
        return api.get(JOBS, api.namespace, name)
    except Refused as refused:
        if refused.status != NOT_FOUND or refused.missing_api:
            raise
        raise CommandError(f"no job {name} in the namespace {api.namespace}: {_instead(api, name)}") from refused


def read_jobs(api: Api, namespace: str | None) -> list[Object]:
    """All jobs of a namespace, or of all namespaces, by name."""
    return sorted(api.list(JOBS, namespace), key=lambda job: (job["metadata"]["namespace"], job["metadata"]["name"]))


def read_ledger(api: Api, job: Object) -> Object | None:
    """The job's ledger; None if it has none yet, or if the one with its name is that of another job."""
    name = part(job, "status.ledgerName") or names.ledger_name(job["metadata"]["name"], job["metadata"]["uid"])
    try:
        ledger = api.get(LEDGERS, job["metadata"]["namespace"], name)
    except Refused as refused:
        if refused.status != NOT_FOUND or refused.missing_api:
            raise
        return None
    return ledger if part(ledger, "spec.jobUID") == job["metadata"]["uid"] else None


def read_pods(api: Api, job: Object, attempt: int | None = None) -> list[Object]:
    """The pods of a job, or of one of its attempts. The label holds the job's UID, so no namesake's pods are here."""
    labels = f"{names.JOB_UID}={job['metadata']['uid']}" + (f",{names.ATTEMPT}={attempt}" if attempt else "")
    return api.list(PODS, job["metadata"]["namespace"], labels=labels)


def read_warnings(api: Api, job: Object, pods: Iterable[Object]) -> list[Object]:
    """The warning Events about a job, its RayJobs, RayClusters and pods, also deleted ones, oldest first.

    The next job of the same name uses the names of RayJobs and pods again, so Events older than the job are left out.
    """
    metadata = job["metadata"]
    attempts = part(job, "status.attempts") or ()
    owned = {each[key] for each in attempts for key in ("rayJobName", "rayClusterName") if each.get(key)}
    owned |= {pod["metadata"]["name"] for pod in pods}
    clusters = tuple(f"{each['rayClusterName']}-" for each in attempts if each.get("rayClusterName"))

    created = parse_time(metadata.get("creationTimestamp")) or 0.0

    def concerns_job(event: Object) -> bool:
        about = event.get("involvedObject") or {}
        if about.get("kind") == KIND:
            return bool(about.get("uid") == metadata["uid"])
        if (parse_time(event_time(event)) or 0.0) < created:
            return False
        name = str(about.get("name") or "")
        return name in owned or (about.get("kind") == "Pod" and name.startswith(clusters))

    found = filter(concerns_job, api.list(EVENTS, metadata["namespace"], fields="type=Warning"))
    return sorted(found, key=event_time)


def read_pod_group_events(api: Api, job: Object) -> list[Object]:
    """What Volcano reports about the pods of the last attempt together, oldest first. No pod's condition shows that the
    queue has no room, and the Event that does is no warning.
    """
    ray_job = _last_ray_job(job)
    if ray_job is None:
        return []
    about = {"kind": "PodGroup", "name": f"ray-{ray_job}-pg"}
    selected = ",".join(f"involvedObject.{key}={value}" for key, value in about.items())
    found = api.list(EVENTS, job["metadata"]["namespace"], fields=f"{selected},reason=Unschedulable")
    return sorted(found, key=event_time)


def event_time(event: Object) -> str:
    """When an Event was last seen, as a timestamp."""
    metadata = event["metadata"]
    return str(event.get("lastTimestamp") or event.get("eventTime") or metadata.get("creationTimestamp") or "")


def read_ray_job(api: Api, job: Object) -> Object | None:
    """The RayJob of the last attempt; None if there is none."""
    name = _last_ray_job(job)
    return api.get(RAY_JOBS, job["metadata"]["namespace"], name) if name else None


def read_workload(api: Api, ray_job: Object) -> Object | None:
    """Kueue's Workload of a RayJob; None if Kueue has created none, or is not installed."""
    for resource in WORKLOADS:
        try:
            found = api.list(resource, ray_job["metadata"]["namespace"])
        except Refused as refused:
            if refused.status == NOT_FOUND:
                continue
            raise
        uid = ray_job["metadata"]["uid"]
        owned = (each for each in found if any(o["uid"] == uid for o in each["metadata"].get("ownerReferences") or ()))
        return next(owned, None)
    return None


def _last_ray_job(job: Object) -> str | None:
    """The name of the RayJob of the last attempt."""
    attempts = part(job, "status.attempts") or ()
    return attempts[-1].get("rayJobName") if attempts else None


def _instead(api: Api, name: str) -> str:
    """What to write instead of the name of a job that does not exist."""
    try:
        known = [job["metadata"]["name"] for job in read_jobs(api, api.namespace)]
        if not known:
            return _without_jobs(api)
    except Refused:
        return "check its name and the namespace (-n)"
    similar = difflib.get_close_matches(name, known, _SHOWN_NAMES, 0.5)
    if similar:
        return f"did you mean {' or '.join(similar)}?"
    return f"the jobs there are {names_text(known)}"


def names_text(names: Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    rest = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _without_jobs(api: Api) -> str:
    """What to check in a namespace without jobs."""
    try:
        api.get(NAMESPACES, None, api.namespace)
    except Refused as refused:
        if refused.status == NOT_FOUND:
            return "this namespace does not exist: check -n"
    return "it has no jobs; `kubectl tensafe status -A` lists those of all namespaces"
