"""One leader: a Lease, renewed every two seconds, believed for ten, and never after seven without a renewal.

The library's election cannot make a missing Lease (it passes an argument that its own client refuses), ends in an
exception where the API server is away while the program goes on unled, and believes itself leading while a frozen API
server answers nothing (tried with 37.0). So the few requests are ours, each with a short time-out; every error is "no".

`leading` looks at a monotonic clock, which a suspended machine or a blocked loop cannot turn back: each write of the
operator asks it first.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from tensafe_operator.runtime.api_client import CONFLICT, NOT_FOUND, ApiClient, ApiError, ApiUnavailable

log = logging.getLogger(__name__)
LEASE_SECONDS = 10
RENEW_SECONDS = 7.0
RETRY_SECONDS = 2.0
NAME = "tensafe-operator"
T = TypeVar("T")
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class LeaderElection:
    """The claim of one process to be the only operator at work."""

    def __init__(self, api: ApiClient, namespace: str, identity: str) -> None:
        self._api = api
        self._namespace = namespace
        self._identity = identity
        self._until = 0.0
        self._seen: tuple[str, float] | None = None
        """The version that another holder's Lease was last seen at, and when by our clock: theirs may be wrong."""

    @property
    def leading(self) -> bool:
        """Whether this process may write now."""
        return _now() < self._until

    @property
    def unrenewed(self) -> float:
        """Seconds since the last renewal by this process; 0 where it never led, or let go."""
        return _now() - (self._until - RENEW_SECONDS) if self._until else 0.0

    async def acquire(self) -> None:
        """Return once this process leads."""
        waited = False
        while not await self._try():
            if not waited:
                log.info("waiting for the lease, which another operator holds", extra={"identity": self._identity})
            waited = True
            await asyncio.sleep(RETRY_SECONDS)
        log.info("leading", extra={"identity": self._identity})

    async def keep(self) -> None:
        """Renew until the lease is lost, and return then: the process is to end."""
        while self.leading:
            await asyncio.sleep(RETRY_SECONDS)
            await self._try()
        log.error("the lease is lost")

    async def release(self) -> None:
        """Let another process lead at once."""
        if not self.leading:
            return
        self._until = 0.0
        try:
            found = await self._answer(self._api.get("Lease", self._namespace, NAME))
            if found is not None and found["spec"].get("holderIdentity") == self._identity:
                await self._answer(self._api.replace(self._document(found, holder="", seconds=1)))
        except (ApiUnavailable, ApiError, TimeoutError) as error:
            log.warning("the lease could not be released: %s", _words(error))

    async def _try(self) -> bool:
        """Take or renew the lease if it may be had."""
        asked = _now()
        try:
            found = await self._answer(self._api.get("Lease", self._namespace, NAME))
            if found is None:
                await self._answer(self._api.create(self._document(None)))
            elif self._free(found):
                await self._answer(self._api.replace(self._document(found)))
            else:
                return False
        except (ApiUnavailable, ApiError, TimeoutError) as error:
            if not (isinstance(error, ApiError) and error.status in (CONFLICT, NOT_FOUND)):
                log.warning("the lease could not be renewed: %s", _words(error))
            return False
        self._until = asked + RENEW_SECONDS
        return True

    async def _answer(self, request: Awaitable[T]) -> T:
        """What the API server says in good time. (`asyncio.wait_for` of Python 3.11 can swallow a cancellation that
        comes with the answer: who does not lead any more would renew its Lease for ever.)
        """
        async with asyncio.timeout(RETRY_SECONDS):
            return await request

    def _free(self, found: Mapping[str, Any]) -> bool:
        """Whether it is ours, nobody's, or of somebody who has not renewed it for its whole time, by our clock."""
        spec = found["spec"]
        if spec.get("holderIdentity") in (self._identity, "", None):
            return True
        version, now = str(found["metadata"]["resourceVersion"]), _now()
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now)
        return now - self._seen[1] > float(spec.get("leaseDurationSeconds") or LEASE_SECONDS)

    def _document(
        self, found: Mapping[str, Any] | None, *, holder: str | None = None, seconds: int = LEASE_SECONDS
    ) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = dict(found["spec"]) if found else {}
        mine = before.get("holderIdentity") == self._identity
        spec = {
            "holderIdentity": self._identity if holder is None else holder,
            "leaseDurationSeconds": seconds,
            "acquireTime": before.get("acquireTime") if mine else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (0 if mine or not found else 1),
        }
        metadata = dict(found["metadata"]) if found else {"name": NAME, "namespace": self._namespace}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def _now() -> float:
    """Seconds on a clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(_CLOCK)


def _words(error: Exception) -> str:
    return str(error) or f"no answer for {RETRY_SECONDS:.0f} s"
