"""What there is of a job, as the API server itself says: the look that a grave decision rests on."""

from __future__ import annotations

import asyncio

from tensafe_operator import names
from tensafe_operator.api import Api
from tensafe_operator.children import Manifest
from tensafe_operator.plan.observed import Observed, Warned


async def observe(api: Api, namespace: str, name: str) -> Observed | None:
    """Everything of a job, or None where it is gone.

    The job is read last: what stands in its status was true of children that were made before it was written.
    """
    job = await api.get("TenSafeTrainingJob", namespace, name)
    if job is None or job["metadata"].get("deletionTimestamp"):
        return None
    uid = job["metadata"]["uid"]
    own = {names.JOB_UID: uid}
    ray_jobs, pods, ledger, kuberay = await asyncio.gather(
        api.find("RayJob", namespace, own),
        api.find("Pod", namespace, own),
        api.get("PrivacyLedger", namespace, names.ledger_name(name, uid)),
        api.knows("RayJob"),
    )
    waiting = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Pending"]
    events = await asyncio.gather(*(api.events(namespace, each["metadata"]["uid"]) for each in (*ray_jobs, *waiting)))
    told = [warned(event) for found in events for event in found]
    job = await api.get("TenSafeTrainingJob", namespace, name)
    if job is None or job["metadata"]["uid"] != uid:
        return None
    return Observed(job, ledger, tuple(ray_jobs), tuple(pods), tuple(told), kuberay)


def warned(event: Manifest) -> Warned:
    """An Event, trimmed."""
    about = event.get("involvedObject") or {}
    return Warned(
        str(about.get("kind")), str(about.get("name")), str(event.get("reason")), str(event.get("message") or "")
    )
