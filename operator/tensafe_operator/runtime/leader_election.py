"""Leader election by a Lease. By default it is renewed every 2 s, valid for 10 s, and not relied on later than 7 s
after a renewal.

The election is that of the `kubernetes` package, with a lock that corrects four things (found in version 37.0). The
package's lock cannot create a missing Lease. Its requests have no time limit. It raises an error while the API server
does not answer, which ends the election. And the package compares with the wall clock, which may be set: the lock here
decides by a clock that counts only forward whether the Lease of another process has expired.

`leading` compares with the same clock, which a suspended machine or a blocked event loop cannot turn back. The API
client checks it before each write.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable
from typing import Any

from kubernetes.aio.client import ApiClient as Library
from kubernetes.aio.client import ApiException, V1Lease, V1ObjectMeta
from kubernetes.aio.leaderelection import electionconfig, leaderelection
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

from tensafe_operator.runtime.api_client import NO_ANSWER, ApiClient
from tensafe_operator.runtime.lease_durations import DEFAULT_DURATIONS, LeaseDurations

log = logging.getLogger(__name__)
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class LeaderElection(leaderelection.LeaderElection):
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
        self.durations = durations
        self._lock = _Lock(name, namespace, identity, api.library, durations)
        times = (durations.lease, durations.renew_deadline, durations.retry_period)
        super().__init__(electionconfig.Config(self._lock, *times, _unused, _unused))

    @property
    def leading(self) -> bool:
        """Whether this process is the leader now, and so may write."""
        return _now() < self._lock.until

    @property
    def unrenewed(self) -> float:
        """Seconds since the last renewal by this process; 0 if it never led, or has given up the Lease."""
        return _now() - (self._lock.until - self.durations.renew_deadline) if self._lock.until else 0.0

    async def acquire(self) -> bool:
        """Return when this process is the leader."""
        log.info("waiting for the lease", extra={"identity": self._lock.identity})
        await super().acquire()
        log.info("leading", extra={"identity": self._lock.identity})
        return True

    async def keep(self) -> None:
        """Renew the Lease until it is lost, and return then. The process must end after that."""
        while self.leading:
            await asyncio.sleep(self.durations.retry_period)
            await self.try_acquire_or_renew()
        log.error("the lease is lost: it was last renewed %.0f s ago", self.unrenewed)

    async def give_up(self) -> None:
        """Give up the Lease, so that another process can lead immediately."""
        if self.leading:
            await self._lock.release()


class _Lock(LeaseLock):
    """One Lease. A request that fails or takes longer than the retry period counts as "not renewed".

    Attributes:
        until: by the clock of `_now`, until when this process leads; 0 if it never did.
        lease_reference: the Lease as it was read or written last.
    """

    lease_reference: Any

    def __init__(self, name: str, namespace: str, identity: str, library: Library, durations: LeaseDurations) -> None:
        super().__init__(name, namespace, identity, library)
        self.until = 0.0
        self._durations = durations
        self._free = False
        self._observed: tuple[str, float] | None = None
        """Version of another holder's Lease, and when it was first read, by the clock of this process. The renew time
        in the Lease is by the holder's clock, which may be wrong.
        """

    async def get(self, name: str, namespace: str) -> tuple[bool, Any]:
        """True and who holds the Lease (None: no process does), or False and an error."""
        try:
            async with asyncio.timeout(self._durations.retry_period):
                found, holder = await super().get(name, namespace)
        except NO_ANSWER as error:
            return False, ApiException(reason=type(error).__name__)
        self._free = found and (self._mine or self._is_free())
        return found, None if self._free and not self._mine else holder

    async def create(self, name: str, namespace: str, election_record: LeaderElectionRecord) -> bool:
        """Create the Lease; whether this process holds it now."""
        lease = V1Lease(metadata=V1ObjectMeta(name=name), spec=self.update_lease(election_record))
        return await self._write(self.api_instance.create_namespaced_lease(namespace, lease))

    async def update(self, name: str, namespace: str, updated_record: LeaderElectionRecord) -> bool:
        """Acquire or renew the Lease that was read; whether this process holds it now."""
        if not self._free:  # it has expired by the wall clock alone
            return False
        self.lease_reference.spec = self.update_lease(updated_record, self.lease_reference.spec)
        return await self._replace()

    async def release(self) -> None:
        """Give up the Lease. It is read first: a renewal that was cancelled without an answer may have changed it."""
        self.until = 0.0
        found, _ = await self.get(self.name, self.namespace)
        if not found or not self._mine:
            return
        spec = self.lease_reference.spec
        spec.holder_identity, spec.lease_duration_seconds = "", 1
        await self._replace()

    @property
    def _mine(self) -> bool:
        return bool(self.lease_reference.spec.holder_identity == self.identity)

    def _is_free(self) -> bool:
        """Whether no process holds the Lease, or its holder has not renewed it for the Lease's duration."""
        spec, version, now = self.lease_reference.spec, self.lease_reference.metadata.resource_version, _now()
        if self._observed is None or self._observed[0] != version:
            self._observed = (version, now)
        expired = now - self._observed[1] > float(spec.lease_duration_seconds or self._durations.lease)
        return not spec.holder_identity or expired

    async def _replace(self) -> bool:
        return await self._write(
            self.api_instance.replace_namespaced_lease(self.name, self.namespace, self.lease_reference)
        )

    async def _write(self, request: Awaitable[V1Lease]) -> bool:
        """Whether a request succeeds within the retry period.

        `asyncio.wait_for` of Python 3.11 can swallow a cancellation that arrives with the answer. A process that no
        longer leads would then renew its Lease for ever.
        """
        requested = _now()
        try:
            async with asyncio.timeout(self._durations.retry_period):
                self.lease_reference = await request
        except (ApiException, *NO_ANSWER) as error:
            log.warning("the lease could not be written: %s", getattr(error, "reason", None) or type(error).__name__)
            return False
        if self._mine:
            self.until = requested + self._durations.renew_deadline
        return True


async def _unused() -> None:
    """The package's `run` would call this, which is not used."""


def _now() -> float:
    """Seconds on a monotonic clock that also counts while the machine is suspended, if the system has one."""
    return time.clock_gettime(_CLOCK)
