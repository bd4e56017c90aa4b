"""Follows one job by a watch, which is opened again when it ends or breaks. Nothing polls.

A job comes in; its next states go out, each once. The only wait without an event is the backoff after the API server
did not answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tensafe_kubectl.api import Api, Object
from tensafe_kubectl.errors import GONE, NOT_FOUND, TOO_MANY, CommandError, Refused, Unreachable
from tensafe_kubectl.reading import JOBS, part

FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 10.0


def watch_job(api: Api, job: Object, on_break: Callable[[str], None]) -> Iterator[Object]:
    """Yield `job`, then its state after each change, forever.

    Args:
        on_break: called with the cause when the API server does not answer, once for each interruption.

    Raises:
        CommandError: the job was deleted, or replaced by another one of its name.
        Refused: the caller may not watch jobs.
    """
    yield job
    last, backoff = job, 0.0
    while True:
        try:
            for found in _changes(api, last):
                last, backoff = found, 0.0
                yield found
            backoff = 0.0  # the server ended the watch in its time
        except Unreachable as error:
            if not backoff:
                on_break(str(error))
            backoff = min(LONGEST_BACKOFF, 2 * backoff or FIRST_BACKOFF)
            time.sleep(backoff)


def _changes(api: Api, job: Object) -> Iterator[Object]:
    """The changes of the job after `job`, until the watch ends. If the version of `job` is too old, the job is read
    again and is the only change.
    """
    metadata, last = job["metadata"], job
    try:
        for event, found in api.watch(JOBS, metadata["namespace"], metadata["name"], metadata["resourceVersion"]):
            if event == "BOOKMARK":
                continue
            if found["metadata"]["uid"] != metadata["uid"]:
                raise _deleted(last)
            last = found
            if event == "DELETED":
                raise _deleted(last)
            yield found
    except Refused as refused:
        if refused.status == GONE:
            yield _read_again(api, last)
        elif refused.status == TOO_MANY or refused.status >= 500:
            raise Unreachable(f"HTTP {refused.status}: {refused}", api.server) from refused
        else:
            raise


def _read_again(api: Api, last: Object) -> Object:
    try:
        job = api.get(JOBS, last["metadata"]["namespace"], last["metadata"]["name"])
    except Refused as refused:
        if refused.status == NOT_FOUND:
            raise _deleted(last) from refused
        raise
    if job["metadata"]["uid"] != last["metadata"]["uid"]:
        raise _deleted(last)
    return job


def _deleted(job: Object) -> CommandError:
    """The command names the ledger: another job may have the name of this one already."""
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    ledger = part(job, "status.ledgerName")
    stays = f". Its ledger stays: `kubectl tensafe ledger pledger/{ledger} -n {namespace}`" if ledger else ""
    return CommandError(f"the job {name} in the namespace {namespace} was deleted{stays}")
