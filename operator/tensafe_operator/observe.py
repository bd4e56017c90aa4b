"""What there is of a job, as the API server itself says: the look that a grave decision rests on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tensafe_operator import names
from tensafe_operator.children import Manifest
from tensafe_operator.plan.observed import ClusterWarning, Object, Observed
from tensafe_operator.runtime.api_client import ApiClient, ApiUnavailable

_TRIES = 5


async def observe(api: ApiClient, namespace: str, name: str, known: Object | None = None) -> Observed | None:
    """Everything of a job at one moment, or None where the job is gone.

    The job is the same before and after everything else was read. Otherwise, where somebody else writes it (a second
    operator by mistake), its status could tell of a RayJob that was made after the RayJobs were read, and that would
    look like one that was deleted.

    Args:
        known: the job as it was seen before.

    Raises:
        ApiUnavailable: where the job changes as often as it is looked at, as while the API server does not answer.
    """
    job = known or await api.get("TenSafeTrainingJob", namespace, name)
    for _ in range(_TRIES):
        if job is None or job["metadata"].get("deletionTimestamp"):
            return None
        children = await _children(api, namespace, name, job)
        before, job = job, await api.get("TenSafeTrainingJob", namespace, name)
        if job is not None and job["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]:
            return replace(children, job=job)
    raise ApiUnavailable(f"{namespace}/{name} changes as often as it is looked at")


async def _children(api: ApiClient, namespace: str, name: str, job: Object) -> Observed:
    uid = job["metadata"]["uid"]
    own = {names.JOB_UID: uid}
    ray_jobs, pods, ledger, kuberay = await asyncio.gather(
        _ray_jobs(api, namespace, job),
        api.find("Pod", namespace, own),
        api.get("PrivacyLedger", namespace, names.ledger_name(name, uid)),
        api.knows("RayJob"),
    )
    waiting = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Pending"]
    about: list[dict[str, str]] = [{"uid": each["metadata"]["uid"]} for each in (*ray_jobs, *waiting)]
    clusters = [(each.get("status") or {}).get("rayClusterName") for each in ray_jobs]
    about += [{"kind": "RayCluster", "name": cluster} for cluster in clusters if cluster]
    events = await asyncio.gather(*(api.events(namespace, **each) for each in about))
    told = [warned(event) for found in events for event in found]
    return Observed({}, ledger, tuple(ray_jobs), tuple(pods), tuple(told), kuberay)


async def _ray_jobs(api: ApiClient, namespace: str, job: Object) -> list[Manifest]:
    """The RayJobs that the job owns: by label, and the one at work by its name, since anybody may edit labels."""
    uid = job["metadata"]["uid"]
    found = await api.find("RayJob", namespace, {names.JOB_UID: uid})
    there = {each["metadata"]["name"] for each in found}
    for attempt in (job.get("status") or {}).get("attempts") or ():
        name = attempt.get("rayJobName")
        if "endTime" not in attempt and name and name not in there:
            named = await api.get("RayJob", namespace, name)
            found += [named] if named else []
    return [each for each in found if names.job_uid_of("RayJob", each) == uid]


def warned(event: Manifest) -> ClusterWarning:
    """An Event, trimmed."""
    about = event.get("involvedObject") or {}
    return ClusterWarning(
        str(about.get("kind")), str(about.get("name")), str(event.get("reason")), str(event.get("message") or "")
    )
