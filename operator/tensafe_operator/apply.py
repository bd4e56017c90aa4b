"""Applies a decision: creates and deletes objects, then writes the job's status.

Nothing is created twice. An object that already exists and belongs to the job counts as created; a NetworkPolicy that
was changed is brought back to its manifest. An object of the same name that belongs to another job (such as the RayJob
of a deleted job that KubeRay's finalizer still holds) is waited for. What the jobs of a namespace share is applied.

What the API server refuses, for a missing right, a policy or a webhook that fails, is raised as `Refused`.
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
from tensafe_operator.decision.observation import Action, ClusterWarning, Create, Delete
from tensafe_operator.decision.transitions import Transition, transitions_between
from tensafe_operator.event_recorder import record_events
from tensafe_operator.kinds import CORRECTED_KINDS, SHARED_KINDS
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import CONFLICT, FORBIDDEN, NOT_FOUND, AlreadyExists, ApiError, ApiUnavailable

log = logging.getLogger(__name__)
_CREATED_LAST = (LEDGER_KIND, "RayJob")
"""They need the other objects: a ledger needs its key, a RayJob everything else. No decision creates both."""


class Refused(ApiError):
    """The API server refuses to create or delete an object, or another job has its name. `warning` says so."""

    def __init__(self, kind: str, name: str, message: str, reason: Reason = Reason.FORBIDDEN) -> None:
        super().__init__(FORBIDDEN, f"{kind} {name}: {message}")
        self.warning = ClusterWarning(kind, name, reason, message)


async def apply(api: ApiClient, namespace: str, actions: Iterable[Action]) -> list[Manifest]:
    """Take these actions, concurrently except for the objects in _CREATED_LAST.

    Returns:
        The objects of the job that the actions were to create, as the API server returned them.

    Raises:
        Refused: the API server refuses one of them. The others have been taken, but for those that come last.
        ApiUnavailable: the API server does not answer.
    """
    created: list[Manifest] = []
    last = [each for each in actions if isinstance(each, Create) and each.kind in _CREATED_LAST]
    for group in ([each for each in actions if each not in last], last):
        results = await asyncio.gather(*(_take(api, namespace, each) for each in group), return_exceptions=True)
        if failures := [each for each in results if isinstance(each, BaseException)]:
            raise failures[0]
        created += [each for each in results if each is not None and not isinstance(each, BaseException)]
    return created


async def write_status(api: ApiClient, job: Mapping[str, Any], status: Status, now: float) -> Manifest | None:
    """Write the status if it differs from the job's, and record Events for what has changed in it.

    Returns:
        The job with the new status. None if nothing was written: the job has this status, or it has changed since it
        was observed, and its change brings it back to the queue.

    Raises:
        ApiUnavailable, ApiError: if the API server does not answer or refuses the status. An Event says that it does.
    """
    before = Status.model_validate(job.get("status") or {}, by_alias=True, by_name=False)
    if status == before:
        return None
    try:
        stored = await api.replace_status(job, status.model_dump(by_alias=True, mode="json", exclude_none=True))
    except ApiError as error:
        if error.status in (CONFLICT, NOT_FOUND):
            return None
        message = f"{names.STATUS_REFUSED}: {error}: {Reason.FORBIDDEN.fix}"
        await record_events(api, job, status, [Transition(Reason.FORBIDDEN, message, warning=True, repeated=True)], now)
        raise
    await record_events(api, job, status, transitions_between(before, status), now)
    return stored


async def _take(api: ApiClient, namespace: str, action: Action) -> Manifest | None:
    match action:
        case Create(manifest):
            kind, name = action.kind, str(manifest["metadata"]["name"])
        case Delete(kind, name):
            pass
    try:
        if isinstance(action, Create):
            return await _create(api, action.manifest)
        await api.delete(kind, namespace, name, action.uid)
        return None
    except (ApiError, ApiUnavailable) as error:
        if isinstance(error, Refused) or (isinstance(error, ApiUnavailable) and not error.webhook):
            raise
        raise Refused(kind, name, str(error)) from error


async def _create(api: ApiClient, manifest: Manifest) -> Manifest | None:
    kind, metadata = str(manifest["kind"]), manifest["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    if kind in SHARED_KINDS:
        await api.apply(manifest)
        return None  # no step of the job
    try:
        # Without a field, a RayJob would start without its token, or on other nodes than its author wrote.
        return await api.create(manifest, strict=kind == "RayJob")
    except AlreadyExists:
        if kind == "Secret":
            return None  # created by this process before: its name cannot be guessed by any other
    found = await api.get(kind, namespace, name)
    if found is None:
        raise ApiUnavailable(f"{kind} {name} was deleted in this moment")
    if not _belongs_to_job(found, manifest):
        raise Refused(kind, name, "it does not belong to this job, or is being deleted", Reason.NAME_TAKEN)
    if kind not in CORRECTED_KINDS or matches(found, manifest):
        return found
    log.warning(
        "%s %s was changed: it is brought back to what the job needs",
        *(kind, name),
        extra=names.log_fields(namespace, metadata["labels"][names.JOB]),
    )
    return await api.apply(manifest)


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
