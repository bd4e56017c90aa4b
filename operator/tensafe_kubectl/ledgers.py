"""Finds a ledger: that of a job which exists, or one that a deleted job has left.

The name of a job or of a ledger comes in; the ledger, and its job if it exists, go out. Other ledgers that the name may
mean are named in a note, because each counts only what its own job has spent.
"""

from __future__ import annotations

from tensafe_kubectl.api import Api, Object
from tensafe_kubectl.arguments import Target
from tensafe_kubectl.errors import FORBIDDEN, NOT_FOUND, CommandError, Refused
from tensafe_kubectl.reading import JOBS, LEDGERS, names_text, part, read_job, read_ledger
from tensafe_kubectl.terminal import print_note
from tensafe_operator.runtime.objects import Resource


def find_ledger(api: Api, target: Target) -> tuple[Object, Object | None]:
    """The ledger of a job, or the one that the target names; and its job, None if it was deleted.

    The job is as old as the ledger or older.

    Raises:
        CommandError: there is no ledger, or the name may mean several: a job can have the name of another job's ledger.
    """
    job = None if target.kind == "pledger" else _find(api, JOBS, target.name)
    ledger = None if target.kind == "tsj" else _find_ledger_of_name(api, target.name, required=job is None)
    if job is not None:
        own = read_ledger(api, job)
        if ledger is not None and (own is None or _uid(ledger) != _uid(own)):
            raise _ambiguous(target.name, own)
        ledger = own
    elif ledger is None:
        ledger = _of_deleted_job(api, target)
    else:
        found = _find(api, JOBS, str(part(ledger, "spec.jobName")))
        if found and found["metadata"]["uid"] == part(ledger, "spec.jobUID"):
            job = found
            # Read again after the job, or the status of a job that trains could count steps that the ledger lacks.
            ledger = _find(api, LEDGERS, target.name) or ledger
    others = _others(api, target.name, ledger)
    if ledger is None:
        raise CommandError(
            f"the job {target.name} has no ledger: the operator has created none yet, or it was deleted; `kubectl "
            f"tensafe explain {target.name} -n {api.namespace}` says more" + (f". {others}" if others else "")
        )
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


def _find_ledger_of_name(api: Api, name: str, *, required: bool) -> Object | None:
    """The ledger of this name. A caller who may read one job and its ledger need not be allowed to look for another."""
    try:
        return _find(api, LEDGERS, name)
    except Refused as refused:
        if refused.status != FORBIDDEN or required:
            raise
        return None


def _ambiguous(name: str, own: Object | None) -> CommandError:
    ledger = f"the ledger {own['metadata']['name']}" if own else "no ledger yet"
    return CommandError(
        f"{name} is a job, with {ledger}, and it is also the ledger of another job: write tsj/{name} for the job, or "
        f"pledger/{name} for the ledger"
    )


def _of_deleted_job(api: Api, target: Target) -> Object:
    name = target.name
    if target.kind == "pledger":
        raise CommandError(
            f"no ledger {name} in the namespace {api.namespace}: `kubectl tensafe ledger -n {api.namespace}` lists them"
        )
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
    others = [each for each in found if ledger is None or _uid(each) != _uid(ledger)]
    if not others:
        return ""
    jobs, names = sorted({each["spec"]["jobName"] for each in others}), [each["metadata"]["name"] for each in others]
    return (
        f"other jobs named {' or '.join(jobs)} have ledgers of their own, which are not counted here: "
        f"{names_text(names)}"
    )


def _ledgers_of(api: Api, job_names: set[str]) -> list[Object]:
    return [each for each in list_ledgers(api, api.namespace) if part(each, "spec.jobName") in job_names]


def _uid(body: Object) -> str:
    return str(body["metadata"]["uid"])
