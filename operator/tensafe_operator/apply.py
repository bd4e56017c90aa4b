"""Applies a decision: creates and deletes objects, then writes the job's status.

Nothing is created twice. An object that already exists and belongs to the job counts as created; a NetworkPolicy or
RoleBinding that was changed is brought back to its manifest. An object of the same name that belongs to another job
(such as the RayJob of a deleted job that KubeRay's finalizer still holds) is waited for.

What the API server refuses, for a missing right, a policy or a webhook that fails, is shown in the job's status.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tensafe_api.reasons import Reason
from tensafe_api.resources.ledger import LEDGER_KIND
from tensafe_api.resources.status import Status
from tensafe_operator import names
from tensafe_operator.children import Manifest, matches
from tensafe_operator.event_recorder import record_events
from tensafe_operator.kinds import CORRECTED_KINDS, trim
from tensafe_operator.plan.observed import Action, ClusterWarning, Create, Delete, Observed
from tensafe_operator.plan.short_status import TOO_LARGE, short_status, status_of_figures
from tensafe_operator.plan.transitions import Transition, transitions_between
from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import (
    CONFLICT,
    NOT_FOUND,
    AlreadyExists,
    ApiError,
    ApiUnavailable,
    ObjectTooLarge,
    UnknownFields,
)
from tensafe_operator.served_fields import FieldsDropped, why_dropped

log = logging.getLogger(__name__)
_CREATED_LAST = (LEDGER_KIND, "RayJob")
"""They need the other objects: a ledger needs its key, a RayJob everything else. No decision creates both."""


class RetryLater(Exception):
    """An action is blocked for now. `warning` is what the job's status should show of it, if anything."""

    def __init__(self, message: str, warning: ClusterWarning | None = None) -> None:
        super().__init__(message)
        self.warning = warning


class DeletionRefused(RetryLater):
    """An object cannot be deleted, which the new status may count on (`plan.diagnosis.status_of_refusal`)."""


async def apply(
    api: ApiClient,
    observed: Observed,
    actions: Iterable[Action],
    done: Callable[[Create], object] | None = None,
) -> list[Manifest]:
    """Take these actions, concurrently except for the objects in _CREATED_LAST.

    Args:
        done: called for each object that was created or brought back, also where another one fails.

    Returns:
        The objects that the actions were to create, as the API server returned them.

    Raises:
        RetryLater: if an object of the same name belongs to another job, or the API server refuses to write one.
        DeletionRefused: if the API server refuses to delete one.
        ApiUnavailable: if the API server does not answer.
    """
    created: list[Manifest] = []
    last = [each for each in actions if isinstance(each, Create) and each.kind in _CREATED_LAST]
    for group in ([each for each in actions if each not in last], last):
        results = await asyncio.gather(*(_take(api, observed, each) for each in group), return_exceptions=True)
        for action, result in zip(group, results, strict=True):
            if done and isinstance(action, Create) and not isinstance(result, BaseException):
                done(action)
        failures = [each for each in results if isinstance(each, BaseException)]
        if failures:
            # The status is written although an object cannot be created, but not if another action failed.
            raise next((each for each in failures if type(each) is not RetryLater), failures[0])
        created += [each for each in results if each is not None and not isinstance(each, BaseException)]
    return created


async def write_status(api: ApiClient, job: Mapping[str, Any], status: Status, now: float) -> Manifest | None:
    """Write the status if it differs from the job's, and record Events for what has changed in it. A status that the
    API server cannot store is shortened (`plan.short_status`): at last only the privacy figures change.

    Returns:
        The job with the new status, or None if nothing was written.

    Raises:
        RetryLater: if the job has changed since it was read.
        ApiUnavailable, ApiError: if the API server does not answer or refuses the status. ObjectTooLarge: if not even
            the short status can be stored. An Event of the job reports what will not pass by itself.
        FieldsDropped: if the CRDs are those of an earlier release, and the write would delete fields of the job.
    """
    before = job.get("status") or {}
    try:
        try:
            stored = await _store(api, job, status)
        except ObjectTooLarge:
            stored, status = await _store_shortened(api, job, status, now)
    except (ApiUnavailable, ApiError) as error:
        if message := _why_not_stored(error):
            refusal = Transition(Reason.FORBIDDEN, message, warning=True, repeated=True)
            await record_events(api, job, status, [refusal], now)
        raise
    if stored is None:
        return None
    transitions = transitions_between(Status.model_validate(before, by_alias=True, by_name=False), status)
    await record_events(api, job, status, transitions, now)
    return stored


async def report_unwritable(
    api: ApiClient, job: Mapping[str, Any], why: Exception, now: float, *, varies: bool
) -> None:
    """Report by an Event of the job that its status is not written, although the API server would store it.

    Args:
        varies: whether the text is another one each time, so that the first one stands for all.
    """
    message = f"{names.STATUS_REFUSED}: {why}"
    status = Status.model_validate(job.get("status") or {}, by_alias=True, by_name=False)
    await record_events(
        api, job, status, [Transition(Reason.GUARD_MISSING, message, warning=True, repeated=varies)], now
    )


async def _store_shortened(
    api: ApiClient, job: Mapping[str, Any], status: Status, now: float
) -> tuple[Manifest | None, Status]:
    """Write the longest of the shortened statuses that can be stored; return the job and this status."""
    before = job.get("status") or {}
    short = short_status(before, status, now)
    with contextlib.suppress(ObjectTooLarge):
        return await _store(api, job, short, without_managers=True), short
    figures = status_of_figures(before, status, now)
    return await _store(api, job, figures, without_managers=True), figures


def _why_not_stored(error: ApiUnavailable | ApiError) -> str:
    """What a user has to know of a status that cannot be stored; empty where that may pass by itself, and where the job
    is deleted.
    """
    if isinstance(error, ObjectTooLarge):
        return f"{names.STATUS_REFUSED}: {TOO_LARGE}"
    if isinstance(error, ApiUnavailable) and not error.webhook:
        return ""
    if isinstance(error, ApiError) and error.status == NOT_FOUND:
        return ""
    return f"{names.STATUS_REFUSED}: {error}: {Reason.FORBIDDEN.fix}"


async def _store(
    api: ApiClient, job: Mapping[str, Any], status: Status, *, without_managers: bool = False
) -> Manifest | None:
    """Write the status; None if the job has it."""
    after = status.model_dump(by_alias=True, mode="json", exclude_none=True)
    if after == (job.get("status") or {}):
        return None
    try:
        return await api.replace_status(job, after, without_managers=without_managers)
    except UnknownFields as error:
        raise FieldsDropped.because(why_dropped(str(error))) from error
    except ApiError as error:
        if error.status == CONFLICT:
            raise RetryLater("the job has changed since it was read") from error
        raise


async def _take(api: ApiClient, observed: Observed, action: Action) -> Manifest | None:
    match action:
        case Create(manifest):
            return await _create(api, manifest)
        case Delete(kind, name, uid):
            namespace, job = observed.job["metadata"]["namespace"], observed.job["metadata"]["name"]
            with _refusals_shown(kind, name, names.log_fields(namespace, job), "deleted", DeletionRefused):
                await api.delete(kind, namespace, name, uid)
            return None


@contextlib.contextmanager
def _refusals_shown(
    kind: str, name: str, fields: Mapping[str, str], verb: str, refused: type[RetryLater] = RetryLater
) -> Iterator[None]:
    """Raise `refused`, with what the status should show, where the API server refuses a request about an object."""
    try:
        yield
    except AlreadyExists:
        raise
    except (ApiError, ApiUnavailable) as error:
        if isinstance(error, ApiUnavailable) and not error.webhook:
            raise
        if isinstance(error, ApiError) and error.status == CONFLICT:
            raise RetryLater(str(error)) from error  # a quota was changed at the same time
        log.warning("%s %s cannot be %s: %s", kind, name, verb, error, extra=fields)
        raise refused(str(error), ClusterWarning(kind, name, Reason.FORBIDDEN, str(error))) from error


async def _create(api: ApiClient, manifest: Manifest) -> Manifest | None:
    kind, metadata = str(manifest["kind"]), manifest["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    fields = names.log_fields(namespace, metadata["labels"][names.JOB])
    try:
        with _refusals_shown(kind, name, fields, "created"):
            # Without a field, a RayJob would start without its token, or on other nodes than its author wrote.
            return await api.create(manifest, strict=kind == "RayJob")
    except AlreadyExists as error:
        if kind == "Secret":
            return None  # created by this process before: its name cannot be guessed by any other
        found = await api.get(kind, namespace, name)
        if found is None:
            raise RetryLater(f"{kind} {name} was deleted in this moment") from error
        if kind in CORRECTED_KINDS:
            found = trim(kind, found)  # a user may have made it large
        if not _belongs_to_job(found, manifest):
            taken = "it does not belong to this job, or is being deleted"
            raise RetryLater(f"{kind} {name}: {taken}", ClusterWarning(kind, name, Reason.NAME_TAKEN, taken)) from error
        if kind in CORRECTED_KINDS and not matches(found, manifest):
            log.warning("%s %s was changed: it is brought back to what the job needs", kind, name, extra=fields)
            with _refusals_shown(kind, name, fields, "brought back"):
                return await _bring_back(api, found, manifest)
        return found


async def _bring_back(api: ApiClient, found: Manifest, manifest: Manifest) -> Manifest:
    """Make an object as `manifest` says. The role of a RoleBinding cannot change, so it is created again."""
    if found.get("roleRef") == manifest.get("roleRef"):
        return await api.apply(manifest)
    metadata = found["metadata"]
    await api.delete(manifest["kind"], metadata["namespace"], metadata["name"], metadata["uid"])
    return await api.create(manifest)


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
