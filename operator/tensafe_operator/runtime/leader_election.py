"""Leader election by a Lease. By default it is renewed every 2 s, valid for 10 s, and not relied on later than 7 s
after a renewal.

The election of the `kubernetes` package is not used, for three reasons (tried with version 37.0). It cannot create a
missing Lease, since it passes an argument that its own client refuses. It ends with an exception while the API server
is unavailable, and the program continues without a leader. It still reports itself as the leader while a frozen API
server answers nothing. So this module makes the few requests itself, each with a short timeout. Every error counts as
"not renewed".

`leading` compares with a monotonic clock that a suspended machine or a blocked event loop cannot turn back. The API
client checks it before each write.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from tensafe_operator.runtime.api_client import ApiClient
from tensafe_operator.runtime.api_errors import CONFLICT, NOT_FOUND, ApiError, ApiUnavailable
from tensafe_operator.runtime.lease_durations import DEFAULT_DURATIONS, LeaseDurations

log = logging.getLogger(__name__)
T = TypeVar("T")
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class LeaderElection:
    """Makes at most one of several processes the leader.

    Args:
        api: client of this election alone: renewals must not wait behind other requests.
        namespace: namespace of the Lease.
        name: name of the Lease.
        identity: name of this process, unique among the candidates.
        durations: those of this process. It respects the duration in the Lease of another holder.
    """

    def __init__(
        self, api: ApiClient, namespace: str, name: str, identity: str, durations: LeaseDurations = DEFAULT_DURATIONS
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self.durations = durations
        self._until = 0.0
        self._observed: tuple[str, float] | None = None
        """Version of another holder's Lease, and when it was first read, by the clock of this process. The renew time
        in the Lease is by the holder's clock, which may be wrong.
        """

    @property
    def leading(self) -> bool:
        """Whether this process is the leader now, and so may write."""
        return _now() < self._until

    @property
    def unrenewed(self) -> float:
        """Seconds since the last renewal by this process; 0 if it never led, or has given up the Lease."""
        return _now() - (self._until - self.durations.renew_deadline) if self._until else 0.0

    async def acquire(self) -> None:
        """Return when this process is the leader."""
        waiting = False
        while not await self._try():
            if not waiting:
                log.info("waiting for the lease, which another operator holds", extra={"identity": self._identity})
            waiting = True
            await asyncio.sleep(self.durations.retry_period)
        log.info("leading", extra={"identity": self._identity})

    async def keep(self) -> None:
        """Renew the Lease until it is lost, and return then. The process must end after that."""
        while self.leading:
            await asyncio.sleep(self.durations.retry_period)
            await self._try()
        log.error("the lease is lost: it was last renewed %.0f s ago", self.unrenewed)

    async def give_up(self) -> None:
        """Give up the Lease, so that another process can lead immediately."""
        if not self.leading:
            return
        self._until = 0.0
        try:
            lease = await self._answer(self.read())
            if lease is not None and lease["spec"].get("holderIdentity") == self._identity:
                await self._answer(self._api.replace(self._document(lease, holder="", seconds=1)))
        except (ApiUnavailable, ApiError, TimeoutError) as error:
            log.warning("the lease could not be given up: %s", self._describe(error))

    async def read(self) -> Mapping[str, Any] | None:
        """The Lease, or None if there is none."""
        return await self._api.get("Lease", self._namespace, self._name)

    async def _try(self) -> bool:
        """Acquire or renew the Lease if it is free or held by this process."""
        requested = _now()
        try:
            lease = await self._answer(self.read())
            if lease is None:
                await self._answer(self._api.create(self._document(None)))
            elif self._is_free(lease):
                await self._answer(self._api.replace(self._document(lease)))
            else:
                return False
        except (ApiUnavailable, ApiError, TimeoutError) as error:
            if not (isinstance(error, ApiError) and error.status in (CONFLICT, NOT_FOUND)):
                log.warning("the lease could not be renewed: %s", self._describe(error))
            return False
        self._until = requested + self.durations.renew_deadline
        return True

    async def _answer(self, request: Awaitable[T]) -> T:
        """The answer to a request, within the retry period.

        `asyncio.wait_for` of Python 3.11 can swallow a cancellation that arrives with the answer. A process that no
        longer leads would then renew its Lease for ever.
        """
        async with asyncio.timeout(self.durations.retry_period):
            return await request

    def _is_free(self, lease: Mapping[str, Any]) -> bool:
        """Whether this process or none holds the Lease, or its holder has not renewed it for the Lease's duration."""
        spec = lease["spec"]
        if spec.get("holderIdentity") in (self._identity, "", None):
            return True
        version, now = str(lease["metadata"]["resourceVersion"]), _now()
        if self._observed is None or self._observed[0] != version:
            self._observed = (version, now)
        return now - self._observed[1] > float(spec.get("leaseDurationSeconds") or self.durations.lease)

    def _document(
        self, lease: Mapping[str, Any] | None, *, holder: str | None = None, seconds: int | None = None
    ) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = dict(lease["spec"]) if lease else {}
        mine = before.get("holderIdentity") == self._identity
        spec = {
            "holderIdentity": self._identity if holder is None else holder,
            "leaseDurationSeconds": self.durations.lease if seconds is None else seconds,
            "acquireTime": before.get("acquireTime") if mine else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if mine or not lease else 1),
        }
        metadata = dict(lease["metadata"]) if lease else {"name": self._name, "namespace": self._namespace}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}

    def _describe(self, error: Exception) -> str:
        return str(error) or f"no answer for {self.durations.retry_period:g} s"


def _now() -> float:
    """Seconds on a monotonic clock that also counts while the machine is suspended, if the system has one."""
    return time.clock_gettime(_CLOCK)
