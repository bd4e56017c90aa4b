"""Applies a decision: creates and deletes objects, then writes the job's status.

Nothing is created twice. An object that already exists and belongs to the job counts as created; a NetworkPolicy or
RoleBinding that was changed is brought back to its manifest. An object of the same
name that belongs to another job (such as the RayJob of a deleted job that KubeRay's finalizer still holds) is waited
for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from tensafe_api.reasons import Reason
from tensafe_api.resources.ledger import LEDGER_KIND
from tensafe_api.resources.status import Status
from tensafe_operator import names
from tensafe_operator.children import Manifest, matches
from tensafe_operator.event_recorder import record_events
from tensafe_operator.kinds import CORRECTED_KINDS
from tensafe_operator.plan.observed import Action, ClusterWarning, Create, Delete, Observed
from tensafe_operator.plan.transitions import transitions_between
from tensafe_operator.runtime.api_client import CONFLICT, AlreadyExists, ApiClient, ApiError

log = logging.getLogger(__name__)
_CREATED_LAST = (LEDGER_KIND, "RayJob")
"""They need the other objects: a ledger needs its key, a RayJob everything else. No decision creates both."""


class RetryLater(Exception):
    """An action is blocked for now. `warning` is what the job's status should show of it, if anything."""

    def __init__(self, message: str, warning: ClusterWarning | None = None) -> None:
        super().__init__(message)
        self.warning = warning


async def apply(api: ApiClient, observed: Observed, actions: Iterable[Action]) -> list[Manifest]:
    """Take these actions, concurrently except for the objects in _CREATED_LAST.

    Returns:
        The objects that the actions were to create, as the API server returned them.

    Raises:
        RetryLater: if an object of the same name belongs to another job, or the API server refuses to create one.
        ApiUnavailable: if the API server does not answer.
    """
    created: list[Manifest] = []
    last = [each for each in actions if isinstance(each, Create) and each.kind in _CREATED_LAST]
    for group in ([each for each in actions if each not in last], last):
        results = await asyncio.gather(*(_take(api, observed, each) for each in group), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
            if result is not None:
                created.append(result)
    return created


async def write_status(api: ApiClient, job: Mapping[str, Any], status: Status, now: float) -> Manifest | None:
    """Write the status if it differs from the job's, and record Events for what has changed in it.

    Returns:
        The job with the new status, or None if nothing was written.

    Raises:
        RetryLater: if the job has changed since it was read.
        ApiUnavailable, ApiError: if the API server does not answer or refuses the status.
    """
    before, after = job.get("status") or {}, status.model_dump(by_alias=True, mode="json", exclude_none=True)
    if before == after:
        return None
    try:
        stored = await api.apply_status(job, after)
    except ApiError as error:
        if error.status == CONFLICT:
            raise RetryLater("the job has changed since it was read") from error
        raise
    transitions = transitions_between(Status.model_validate(before, by_alias=True, by_name=False), status)
    await record_events(api, job, status, transitions, now)
    return stored


async def _take(api: ApiClient, observed: Observed, action: Action) -> Manifest | None:
    match action:
        case Create(manifest):
            return await _create(api, manifest)
        case Delete(kind, name, uid):
            await api.delete(kind, observed.job["metadata"]["namespace"], name, uid)
            return None


async def _create(api: ApiClient, manifest: Manifest) -> Manifest | None:
    kind, metadata = str(manifest["kind"]), manifest["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    try:
        return await api.create(manifest)
    except ApiError as error:
        if not isinstance(error, AlreadyExists):
            if error.status == CONFLICT:
                raise RetryLater(str(error)) from error  # a quota was changed at the same time
            fields = names.log_fields(namespace, metadata["labels"][names.JOB])
            log.warning("%s %s cannot be created: %s", kind, name, error, extra=fields)
            raise RetryLater(str(error), ClusterWarning(kind, name, Reason.FORBIDDEN, str(error))) from error
        if kind == "Secret":
            return None  # created by this process before: its name cannot be guessed by any other
        found = await api.get(kind, namespace, name)
        if found is None:
            raise RetryLater(f"{kind} {name} was deleted in this moment") from error
        if not _belongs_to_job(found, manifest):
            taken = "it belongs to another job, or is being deleted"
            raise RetryLater(f"{kind} {name}: {taken}", ClusterWarning(kind, name, Reason.NAME_TAKEN, taken)) from error
        if kind in CORRECTED_KINDS and not matches(found, manifest):
            fields = names.log_fields(namespace, metadata["labels"][names.JOB])
            log.warning("%s %s was changed: it is brought back to what the job needs", kind, name, extra=fields)
            return await api.apply(manifest)
        return found


def _belongs_to_job(found: Manifest, manifest: Manifest) -> bool:
    """Whether an existing object is the one that was to be created. A ledger names its job in its spec, all other
    objects by the owner that controls them. A ConfigMap must also have the same content.
    """
    if found["metadata"].get("deletionTimestamp"):
        return False
    if manifest["kind"] == LEDGER_KIND:
        return bool(found["spec"]["jobUID"] == manifest["spec"]["jobUID"])
    if manifest["kind"] == "ConfigMap" and found.get("data") != manifest["data"]:
        return False
    owners = {owner["uid"] for owner in found["metadata"].get("ownerReferences") or () if owner.get("controller")}
    return manifest["metadata"]["ownerReferences"][0]["uid"] in owners
