"""Follows one job by a watch, which is opened again when it ends or breaks. Nothing polls.

A job comes in; its next states go out, each once. The only waits without an event are the backoff after the API server
did not answer, and a short one where it has forgotten the version from which the job was watched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tensafe_kubectl.api import Api, Object
from tensafe_kubectl.errors import GONE, TOO_MANY, CommandError, Refused, Unreachable
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
    followed, backoff = _Followed(api, job), 0.0
    while True:
        try:
            for found in followed.changes():
                backoff = 0.0
                yield found
            backoff = 0.0  # the server ended the watch in its time
        except Unreachable as error:
            if not backoff:
                on_break(str(error))
            backoff = min(LONGEST_BACKOFF, 2 * backoff or FIRST_BACKOFF)
            time.sleep(backoff)


class _Followed:
    """A job, and the version of the cluster from which its changes are watched.

    In a busy cluster, the API server forgets the version of a job that does not change. Bookmarks and lists have newer
    ones.
    """

    def __init__(self, api: Api, job: Object) -> None:
        self._api = api
        self._last = job
        self._version = str(job["metadata"]["resourceVersion"])

    def changes(self) -> Iterator[Object]:
        """The changes of the job until the watch ends. If the version is too old, the job is read again, and is the
        only change.
        """
        metadata = self._last["metadata"]
        try:
            for event, found in self._api.watch(JOBS, metadata["namespace"], metadata["name"], self._version):
                self._version = str(found["metadata"]["resourceVersion"])
                if event == "BOOKMARK":
                    continue
                found = self._same(found)
                if event == "DELETED":
                    raise _deleted(found)
                yield found
        except Refused as refused:
            if refused.status == GONE:
                time.sleep(FIRST_BACKOFF)
                yield self._read_again()
            elif refused.status == TOO_MANY or refused.status >= 500:
                raise Unreachable(f"HTTP {refused.status}: {refused}", self._api.server) from refused
            else:
                raise

    def _read_again(self) -> Object:
        metadata = self._last["metadata"]
        found, self._version = self._api.list_one(JOBS, metadata["namespace"], metadata["name"])
        if found is None:
            raise _deleted(self._last)
        return self._same(found)

    def _same(self, found: Object) -> Object:
        """What was found, which must be the job, and not another one of its name."""
        if found["metadata"]["uid"] != self._last["metadata"]["uid"]:
            raise _deleted(self._last)
        self._last = found
        return found


def _deleted(job: Object) -> CommandError:
    """The command names the ledger: another job may have the name of this one already."""
    namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
    ledger = part(job, "status.ledgerName")
    stays = f". Its ledger stays: `kubectl tensafe ledger pledger/{ledger} -n {namespace}`" if ledger else ""
    return CommandError(f"the job {name} in the namespace {namespace} was deleted{stays}")
