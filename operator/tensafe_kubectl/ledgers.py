"""Finds the ledger of a job: of one that exists, or of one that was deleted and has left its ledger.

The name of a job or of a ledger comes in; the ledger, and the job if it exists, go out.
"""

from __future__ import annotations

from tensafe_kubectl.api import Api, Object
from tensafe_kubectl.errors import NOT_FOUND, CommandError, Refused
from tensafe_kubectl.reading import JOBS, LEDGERS, part, read_job, read_ledger


def find_ledger(api: Api, name: str) -> tuple[Object, Object | None]:
    """The ledger of the job with this name, and the job. Without such a job: a ledger of this name, or that of a
    deleted job of this name.

    Raises:
        CommandError: there is no ledger, or several deleted jobs had this name.
    """
    try:
        job = api.get(JOBS, api.namespace, name)
    except Refused as refused:
        if refused.status != NOT_FOUND or refused.missing_api:
            raise
        return _without_job(api, name), None
    ledger = read_ledger(api, job)
    if ledger is None:
        raise CommandError(
            f"the job {name} has no ledger: the operator has created none yet, or it was deleted; `kubectl tensafe "
            f"explain {name} -n {api.namespace}` says more"
        )
    return ledger, job


def list_ledgers(api: Api, namespace: str | None) -> list[Object]:
    """All ledgers of a namespace, or of all namespaces, by name."""
    found = api.list(LEDGERS, namespace)
    return sorted(found, key=lambda each: (each["metadata"]["namespace"], each["metadata"]["name"]))


def _without_job(api: Api, name: str) -> Object:
    known = list_ledgers(api, api.namespace)
    of_name = [ledger for ledger in known if ledger["metadata"]["name"] == name]
    of_job = of_name or [ledger for ledger in known if part(ledger, "spec.jobName") == name]
    if len(of_job) == 1:
        return of_job[0]
    if of_job:
        names = ", ".join(ledger["metadata"]["name"] for ledger in of_job)
        raise CommandError(f"{len(of_job)} deleted jobs had the name {name}: write the name of one ledger: {names}")
    read_job(api, name)  # raises with similar names
    raise AssertionError
