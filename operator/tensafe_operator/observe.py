"""Collects what decisions are based on: a job and its children, from the cache or from the API server itself.

The cache may be behind. An irreversible decision is therefore based on `observe`, which reads the API server.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

from tensafe_api.resources.job import KIND
from tensafe_api.resources.ledger import LEDGER_KIND
from tensafe_api.resources.profile import PROFILE_KIND
from tensafe_api.timestamps import parse_time
from tensafe_operator import names
from tensafe_operator.children import Manifest
from tensafe_operator.decision.observation import ClusterWarning, Object, Observed
from tensafe_operator.kinds import CORRECTED_KINDS, ray_cluster_of, trim
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import FORBIDDEN, ApiError, UnknownKind
from tensafe_operator.runtime.cache import Cache
from tensafe_operator.runtime.objects import Key

_LONGEST = 1024
"""Of a text in an Event. The API server bounds none of them."""


def observe_cached(cache: Cache[ClusterWarning], key: Key) -> Observed | None:
    """A job and its children as the cache has them, or None if the job is unknown.

    Whether KubeRay is installed is not in the cache and is assumed; `observe` checks it, and reads the job's profile.
    """
    snapshot = cache.snapshot(key)
    if snapshot is None:
        return None
    job, children = snapshot.parent, snapshot.children
    name = names.ledger_name(key[1], job["metadata"]["uid"])
    ledger = next((each for each in children[LEDGER_KIND] if each["metadata"]["name"] == name), None)
    corrected = tuple(each for kind in CORRECTED_KINDS for each in children[kind])
    return Observed(job, ledger, children["RayJob"], children["Pod"], snapshot.warnings, corrected=corrected)


async def observe(api: ApiClient, namespace: str, name: str, known: Observed | None = None) -> Observed | None:
    """A job and its children, read from the API server; None if the job is deleted.

    The job is read before its children. So each RayJob that its status names was created before the RayJobs were
    listed: one that is not in the list was deleted. If the job changes meanwhile, its status is not written.

    Args:
        known: the job as it was observed before: its figures and its corrected objects are not read again.

    Raises:
        ApiUnavailable: if the API server does not answer.
    """
    job = await api.get(KIND, namespace, name)
    if job is None:
        return None
    corrected = await _corrected(api, namespace, job) if known is None else known.corrected
    children = await _observe_children(api, namespace, name, job)
    return replace(children, job=job, corrected=corrected, figures=known.figures if known else {})


async def observe_profile(api: ApiClient, job: Object) -> Object | None:
    """The profile that a job names; None if it names none, if it does not exist, or if the operator may not read it."""
    name = (job["spec"].get("cluster") or {}).get("profileRef")
    if name is None:
        return None
    try:
        return await api.get(PROFILE_KIND, None, name)
    except ApiError as error:
        if error.status == FORBIDDEN:
            return None
        raise


def parse_warning(event: Manifest) -> ClusterWarning:
    """The fields of a warning Event that decisions depend on."""
    about = event.get("involvedObject") or {}
    texts = (about.get("kind"), about.get("name"), event.get("reason"), event.get("message") or "")
    kind, name, reason, message = (str(each)[:_LONGEST] for each in texts)
    return ClusterWarning(kind, name, reason, message, _last_reported(event))


def _last_reported(event: Manifest) -> float | None:
    """When an Event was last reported. Clients of the older API count repetitions, those of the newer one have a series
    of them.
    """
    texts = (event.get("lastTimestamp"), (event.get("series") or {}).get("lastObservedTime"), event.get("eventTime"))
    return max((time for time in map(parse_time, texts) if time is not None), default=None)


async def _observe_children(api: ApiClient, namespace: str, name: str, job: Object) -> Observed:
    uid = job["metadata"]["uid"]
    served, pods, ledger, profile = await asyncio.gather(
        _served_ray_jobs(api, namespace, job),
        _owned(api, "Pod", namespace, uid),
        api.get_served(LEDGER_KIND, namespace, names.ledger_name(name, uid)),
        observe_profile(api, job),
    )
    kuberay, ray_jobs = served is not None, served or []
    pending = {pod["metadata"]["uid"] for pod in pods if (pod.get("status") or {}).get("phase") == "Pending"}
    about: list[dict[str, str]] = [{"uid": each["metadata"]["uid"]} for each in ray_jobs]
    clusters = [ray_cluster_of("RayJob", each) for each in ray_jobs]
    about += [{"kind": cluster[0], "name": cluster[1]} for cluster in clusters if cluster]
    about += [{"kind": "Pod"}] if pending else []  # one request for all pods: the API server reads all Events for each

    def warning(event: Manifest) -> ClusterWarning | None:
        involved = event["involvedObject"]
        return parse_warning(event) if involved.get("kind") != "Pod" or involved.get("uid") in pending else None

    found = await asyncio.gather(*(api.warning_events(namespace, warning, **each) for each in about))
    warnings = tuple(itertools.chain.from_iterable(found))
    return Observed({}, ledger, tuple(ray_jobs), tuple(pods), warnings, kuberay, profile=profile)


async def _corrected(api: ApiClient, namespace: str, job: Object) -> tuple[Object, ...]:
    uid = job["metadata"]["uid"]
    found = await asyncio.gather(*(_owned(api, kind, namespace, uid) for kind in CORRECTED_KINDS))
    return tuple({**each, "kind": kind} for kind, items in zip(CORRECTED_KINDS, found, strict=True) for each in items)


async def _owned(api: ApiClient, kind: str, namespace: str, uid: str) -> list[Manifest]:
    """The objects of a job that have its label, as far as decisions depend on them. A user may create large ones."""

    def keep(body: Manifest) -> Manifest | None:
        return trim(kind, body) if names.job_uid_of(kind, body) == uid else None

    return await api.find(kind, namespace, {names.JOB_UID: uid}, keep)


async def _served_ray_jobs(api: ApiClient, namespace: str, job: Object) -> list[Manifest] | None:
    """The RayJobs that the job owns; None while the API server does not serve RayJobs, which are then not deleted."""
    try:
        return await _owned_ray_jobs(api, namespace, job)
    except UnknownKind:
        return None


async def _owned_ray_jobs(api: ApiClient, namespace: str, job: Object) -> list[Manifest]:
    """The RayJobs that the job owns. They are found by label, and that of the open attempt also by its name, since any
    user may edit labels.
    """
    uid = job["metadata"]["uid"]
    found = await _owned(api, "RayJob", namespace, uid)
    found_names = {each["metadata"]["name"] for each in found}
    for attempt in (job.get("status") or {}).get("attempts") or ():
        name = attempt.get("rayJobName")
        if "endTime" not in attempt and name and name not in found_names:
            named = await api.get_served("RayJob", namespace, name)
            found += [trim("RayJob", named)] if named else []
    return [each for each in found if names.job_uid_of("RayJob", each) == uid]
