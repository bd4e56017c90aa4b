"""From a plan to what is done: make, remove, and at the end say so in the status. Nothing is done twice.

What is there already and the job's own counts as made. What belongs to somebody else (the RayJob of a deleted job of
the same name that KubeRay's finalizer still holds) is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from tensafe_api.reasons import Reason
from tensafe_api.resources.status import Status
from tensafe_operator import names
from tensafe_operator.children import Manifest
from tensafe_operator.event_recorder import record_events
from tensafe_operator.plan.observed import Action, ClusterWarning, Create, DeleteRayJob, Observed
from tensafe_operator.plan.transitions import transitions_between
from tensafe_operator.runtime.api_client import CONFLICT, ApiClient, ApiError

log = logging.getLogger(__name__)
_LAST = ("PrivacyLedger", "RayJob")
"""No plan makes both."""


class RetryLater(Exception):
    """Something must happen first; it is tried again soon. `refused` is what to tell of it, where it is a refusal."""

    def __init__(self, message: str, refused: ClusterWarning | None = None) -> None:
        super().__init__(message)
        self.refused = refused


async def apply(api: ApiClient, seen: Observed, actions: Iterable[Action]) -> list[Manifest]:
    """Do these on `seen`; what there is now that was to be made, as the API server answered.

    What needs others, a ledger its key and a RayJob all the rest, is made once they are there; they are made side by
    side.

    Raises:
        RetryLater: where an object of the same name is another's, or the API server refuses one.
        ApiUnavailable: where the API server does not answer.
    """
    made: list[Manifest] = []
    last = [each for each in actions if isinstance(each, Create) and each.kind in _LAST]
    for together in ([each for each in actions if each not in last], last):
        done = await asyncio.gather(*(_do(api, seen, each) for each in together), return_exceptions=True)
        for each in done:
            if isinstance(each, BaseException):
                raise each
            if each is not None:
                made.append(each)
    return made


async def _do(api: ApiClient, seen: Observed, action: Action) -> Manifest | None:
    match action:
        case Create(manifest):
            return await _create(api, manifest)
        case DeleteRayJob(name, uid):
            await api.delete("RayJob", seen.job["metadata"]["namespace"], name, uid)
            return None


async def write_status(api: ApiClient, job: Mapping[str, Any], status: Status, now: float) -> Manifest | None:
    """Let the status say this, where it does not yet, and tell people what is new in it: the job as it is then.

    Raises:
        RetryLater: where the job has changed since it was seen.
        ApiUnavailable, ApiError: where the API server does not answer, or says no.
    """
    before, written = job.get("status") or {}, status.model_dump(by_alias=True, mode="json", exclude_none=True)
    if before == written:
        return None
    try:
        stored = await api.apply_status(job, written)
    except ApiError as error:
        if error.status == CONFLICT:
            raise RetryLater("the job has changed meanwhile") from error
        raise
    told = transitions_between(Status.model_validate(before, by_alias=True, by_name=False), status)
    await record_events(api, job, status, told, now)
    return stored


async def _create(api: ApiClient, manifest: Manifest) -> Manifest | None:
    kind, metadata = str(manifest["kind"]), manifest["metadata"]
    name = metadata["name"]
    try:
        return await api.create(manifest)
    except ApiError as error:
        if error.status != CONFLICT:
            owner = {"namespace": metadata["namespace"], "job": metadata["labels"][names.JOB]}
            log.warning("%s %s cannot be made: %s", kind, name, error, extra=owner)
            raise RetryLater(str(error), ClusterWarning(kind, name, Reason.FORBIDDEN, str(error))) from error
        if kind == "Secret":
            return None  # made by this process before: nobody else knows the name
        found = await api.get(kind, metadata["namespace"], name)
        if found is None:
            raise RetryLater(f"{kind} {name} is gone in this moment") from error
        if not _is_ours(found, manifest):
            taken = "it belongs to somebody else, or is being removed"
            raise RetryLater(f"{kind} {name}: {taken}", ClusterWarning(kind, name, Reason.NAME_TAKEN, taken)) from error
        return found


def _is_ours(found: Manifest, manifest: Manifest) -> bool:
    """Whether what is there is what was to be made: of the same job, by its owner or, for a ledger, its spec."""
    if found["metadata"].get("deletionTimestamp"):
        return False
    if manifest["kind"] == "PrivacyLedger":
        return bool(found["spec"]["jobUID"] == manifest["spec"]["jobUID"])
    if manifest["kind"] == "ConfigMap" and found.get("data") != manifest["data"]:
        return False
    owners = {owner["uid"] for owner in found["metadata"].get("ownerReferences") or ()}
    return manifest["metadata"]["ownerReferences"][0]["uid"] in owners
