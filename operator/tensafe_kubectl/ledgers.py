"""Finds a ledger: that of a job which exists, or one that a deleted job has left.

The name of a job or of a ledger comes in; the ledger, and its job if it exists, go out. Other ledgers that the name may
mean are named in a note, because each counts only what its own job has spent.
"""

from __future__ import annotations

from tensafe_kubectl.api import Api, Object
from tensafe_kubectl.errors import FORBIDDEN, NOT_FOUND, CommandError, Refused
from tensafe_kubectl.reading import JOBS, LEDGERS, part, read_job, read_ledger
from tensafe_kubectl.terminal import print_note
from tensafe_operator.runtime.objects import Resource

_SHOWN_NAMES = 8


def find_ledger(api: Api, name: str) -> tuple[Object, Object | None]:
    """The ledger of this name, or that of the job of this name; and its job, None if it was deleted.

    The ledger goes first: its name has a part of the UID of its job, and any user can give that name to a new job.

    Raises:
        CommandError: there is no ledger, or several deleted jobs had this name.
    """
    ledger = _find(api, LEDGERS, name)
    if ledger is None and (job := _find(api, JOBS, name)) is not None:
        ledger = read_ledger(api, job)
        others = _others(api, name, ledger)
        if ledger is None:
            raise CommandError(
                f"the job {name} has no ledger: the operator has created none yet, or it was deleted; `kubectl tensafe "
                f"explain {name} -n {api.namespace}` says more" + (f". {others}" if others else "")
            )
    else:
        ledger = ledger or _of_deleted_job(api, name)
        found = _find(api, JOBS, str(part(ledger, "spec.jobName")))
        job = found if found and found["metadata"]["uid"] == part(ledger, "spec.jobUID") else None
        others = _others(api, name, ledger)
    if others:
        print_note(others)
    return ledger, job


def list_ledgers(api: Api, namespace: str | None) -> list[Object]:
    """All ledgers of a namespace, or of all namespaces, by name."""
    found = api.list(LEDGERS, namespace)
    return sorted(found, key=lambda each: (each["metadata"]["namespace"], each["metadata"]["name"]))


def _find(api: Api, resource: Resource, name: str) -> Object | None:
    try:
        return api.get(resource, api.namespace, name)
    except Refused as refused:
        if refused.status != NOT_FOUND or refused.missing_api:
            raise
        return None


def _of_deleted_job(api: Api, name: str) -> Object:
    found = _ledgers_of(api, {name})
    if not found:
        read_job(api, name)  # raises with similar names
        raise AssertionError
    if len(found) > 1:
        names = ", ".join(ledger["metadata"]["name"] for ledger in found)
        raise CommandError(f"{len(found)} deleted jobs had the name {name}: write the name of one ledger: {names}")
    return found[0]


def _others(api: Api, name: str, ledger: Object | None) -> str:
    """A sentence on the ledgers of other jobs that have or had this name, or that of the ledger's job."""
    try:
        found = _ledgers_of(api, {name, str(part(ledger, "spec.jobName"))})
    except Refused as refused:
        if refused.status != FORBIDDEN:
            raise
        return ""  # who may read one ledger need not be allowed to list them
    names = [each["metadata"]["name"] for each in found if ledger is None or _uid(each) != _uid(ledger)]
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return (
        f"other jobs with this name have ledgers of their own, which are not counted here: "
        f"{', '.join(names[:_SHOWN_NAMES])}{more}"
    )


def _ledgers_of(api: Api, job_names: set[str]) -> list[Object]:
    return [each for each in list_ledgers(api, api.namespace) if part(each, "spec.jobName") in job_names]


def _uid(body: Object) -> str:
    return str(body["metadata"]["uid"])
